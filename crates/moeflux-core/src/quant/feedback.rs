//! Rounding with error feedback: later columns compensate for the error that the rounding of a
//! column causes in products.
//!
//! The expected squared error of a product with inputs `x` is `d' H d`, where
//! `d` is the error of a row of weights and `H = E[x x']`. With `H = R R'`, `R`
//! upper triangular, it is the sum over columns `j` of `(R_jj d_j + sum over
//! i < j of R_ij d_i)^2`: the column that is rounded next aims not at its own
//! weight but at what makes its term zero. This is GPTQ (Frantar and others,
//! 2022), written as successive rounding.

use super::fit::best_grid;
use super::quantise::{Grid, MAGIC};
use super::{Affine, QuantError, QuantiseError, QuantisedRows};

/// Columns per block. The columns of one block compensate for each other, those of different blocks
/// do not.
const FEEDBACK_COLUMNS: usize = 1024;

/// Rows that are rounded column by column together, so that the data that they share stays in the
/// CPU's cache.
const ROWS: usize = 16;

/// Added to each second moment, as a share of their mean: the text that the moments are from is
/// only a sample.
const DAMPING: f64 = 0.05;

/// The dependence of a matrix's columns on each other, computed from its inputs.
#[derive(Clone, Debug)]
pub struct ErrorFeedback {
    cols: usize,
    blocks: Vec<Block>,
}

/// A block of adjacent columns.
#[derive(Clone, Debug)]
struct Block {
    /// `R_jj^2`: the weight of the square of column `j`'s error.
    importance: Vec<f32>,
    /// Row `i`: `R_ij / R_jj` for the columns `j` after `i`.
    carried: Vec<f32>,
}

impl ErrorFeedback {
    /// Widths of the blocks of a matrix with `cols` columns.
    pub fn blocks(cols: usize) -> impl Iterator<Item = usize> {
        (0..cols).step_by(FEEDBACK_COLUMNS).map(move |start| FEEDBACK_COLUMNS.min(cols - start))
    }

    /// Number of second moments of `cols` columns; `None` if it overflows.
    pub fn n_moments(cols: usize) -> Option<usize> {
        let (whole, rest) = (cols / FEEDBACK_COLUMNS, cols % FEEDBACK_COLUMNS);
        (FEEDBACK_COLUMNS * FEEDBACK_COLUMNS).checked_mul(whole)?.checked_add(rest * rest)
    }

    /// Computes the feedback from the second moments of `cols` inputs. `moments` has a symmetric
    /// matrix for each block, row-major, of which only the lower half is used. `None` if a matrix
    /// is not positive definite.
    pub fn new(moments: &[f32], cols: usize) -> Option<ErrorFeedback> {
        assert_eq!(Some(moments.len()), ErrorFeedback::n_moments(cols), "moments of every pair");
        let mut rest = moments;
        let block = |n: usize| {
            let (moments, after) = rest.split_at(n * n);
            rest = after;
            Block::new(moments, n)
        };
        let blocks = ErrorFeedback::blocks(cols).map(block).collect::<Option<_>>()?;
        Some(ErrorFeedback { cols, blocks })
    }
}

impl Block {
    fn new(moments: &[f32], n: usize) -> Option<Block> {
        let mean = (0..n).map(|i| f64::from(moments[i * n + i])).sum::<f64>() / n as f64;
        let mut r: Vec<f64> = moments.iter().map(|moment| f64::from(*moment) / mean).collect();
        (0..n).for_each(|i| r[i * n + i] += DAMPING);
        // Row `j` becomes column `j` of R, last column first.
        for j in (0..n).rev() {
            let (above, from_j) = r.split_at_mut(j * n);
            let row_j = &mut from_j[..=j];
            let pivot = row_j[j].sqrt();
            if !(pivot.is_finite() && pivot > 0.0) {
                return None;
            }
            row_j.iter_mut().for_each(|value| *value /= pivot);
            for (i, row_i) in above.chunks_exact_mut(n).enumerate() {
                let factor = row_j[i];
                row_i[..=i].iter_mut().zip(&*row_j).for_each(|(a, b)| *a -= factor * b);
            }
        }
        let mut carried = vec![0.0; n * n];
        for j in 0..n {
            for i in 0..j {
                carried[i * n + j] = (r[j * n + i] / r[j * n + j]) as f32;
            }
        }
        let importance: Vec<f32> = (0..n).map(|j| (r[j * n + j] * r[j * n + j]) as f32).collect();
        let is_finite = importance.iter().chain(&carried).all(|value| value.is_finite());
        is_finite.then_some(Block { importance, carried })
    }
}

/// Quantises `values`, which are rows of as many columns as `feedback` has, and appends them to
/// `out`. Deterministic: the same values give the same bytes.
///
/// # Errors
/// If a value is not finite, or so large that its scale is not finite.
pub fn feedback_rows(
    values: &[f32],
    affine: Affine,
    feedback: &ErrorFeedback,
    out: &mut QuantisedRows,
) -> Result<QuantError, QuantiseError> {
    let cols = feedback.cols;
    assert!(affine.is_supported(cols) && values.len().is_multiple_of(cols), "whole rows");
    let mut error = QuantError::default();
    let mut targets = Vec::new();
    let n_groups = affine.n_groups(cols);
    let mut groups = Vec::new();
    for (part, values) in values.chunks(ROWS * cols).enumerate() {
        targets.clear();
        targets.extend_from_slice(values);
        groups.clear();
        groups.resize(values.len() / affine.group_size, None);
        let mut first = 0;
        for block in &feedback.blocks {
            let n = block.importance.len();
            for start in (0..n).step_by(affine.group_size) {
                for row in 0..values.len() / cols {
                    let at = row * cols + first;
                    let refuse = || {
                        let group = &values[at + start..][..affine.group_size];
                        QuantiseError::of_group(group, part * ROWS * cols + at + start)
                    };
                    let (values, targets) = (&values[at..at + n], &mut targets[at..at + n]);
                    let done = block.round(start, values, targets, affine).ok_or_else(refuse)?;
                    error.add(done.error);
                    groups[row * n_groups + (first + start) / affine.group_size] = Some(done);
                }
            }
            first += n;
        }
        for it in groups.iter().flatten() {
            out.append_group(&it.q[..affine.group_size], it.grid, affine);
        }
    }
    Ok(error)
}

/// A group after rounding.
#[derive(Clone)]
struct Rounded {
    q: [u8; 128],
    grid: Grid,
    error: QuantError,
}

impl Block {
    /// Rounds the group that begins at column `start`, and changes the targets of later columns to
    /// compensate for the error. `None` if the group has no grid.
    fn round(
        &self,
        start: usize,
        values: &[f32],
        targets: &mut [f32],
        affine: Affine,
    ) -> Option<Rounded> {
        let n = self.importance.len();
        let end = start + affine.group_size;
        let weights = &self.importance[start..end];
        let grid = best_grid(&targets[start..end], weights, affine.bits, affine.params)?;
        let inverse = grid.inverse();
        let mut q = [0; 128];
        let mut differences = [0f32; 128];
        let mut error = QuantError::default();
        for j in start..end {
            let at = grid.nearest(targets[j], inverse);
            // The rounded integer is in the lowest bits of the mantissa.
            q[j - start] = at.to_bits() as u8;
            let difference = grid.scale * (at - MAGIC) + grid.bias - values[j];
            let carried = &self.carried[j * n..][j + 1..end];
            for (target, it) in targets[j + 1..end].iter_mut().zip(carried) {
                *target -= difference * it;
            }
            differences[j - start] = difference;
            error.signal += f64::from(values[j]) * f64::from(values[j]);
            error.noise += f64::from(difference) * f64::from(difference);
        }
        // Four columns at once, so that `targets` is read and written less often.
        for (quarter, differences) in
            differences[..affine.group_size].as_chunks::<4>().0.iter().enumerate()
        {
            let row = |k: usize| &self.carried[(start + 4 * quarter + k) * n..][end..n];
            let rows = row(0).iter().zip(row(1)).zip(row(2)).zip(row(3));
            let [a, b, c, d] = *differences;
            for (target, (((w, x), y), z)) in targets[end..].iter_mut().zip(rows) {
                *target -= (a * w + b * x) + (c * y + d * z);
            }
        }
        Some(Rounded { q, grid, error })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Float, quantise_rows_weighted};
    use super::*;

    const AFFINE: Affine = Affine::new(2, 32, Float::BF16);

    fn noise(n: usize, seed: u64) -> Vec<f32> {
        let mut state = seed;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
        };
        (0..n).map(|_| (0..6).map(|_| uniform()).sum()).collect()
    }

    /// Inputs that depend on their neighbours.
    fn inputs(n: usize, cols: usize) -> Vec<f32> {
        let mut all = noise(n * cols, 3);
        for x in all.chunks_exact_mut(cols) {
            for i in 1..cols {
                x[i] += 0.9 * x[i - 1];
            }
        }
        all
    }

    fn moments(inputs: &[f32], cols: usize) -> Vec<f32> {
        let mut out = Vec::new();
        let mut first = 0;
        for n in ErrorFeedback::blocks(cols) {
            for i in first..first + n {
                for j in first..first + n {
                    let terms = inputs.chunks_exact(cols).map(|x| f64::from(x[i] * x[j]));
                    out.push(terms.sum::<f64>() as f32);
                }
            }
            first += n;
        }
        out
    }

    /// The squared error of products with `inputs`.
    fn product_noise(values: &[f32], rows: &QuantisedRows, inputs: &[f32], cols: usize) -> f64 {
        let view = rows.view(cols, AFFINE);
        let mut back = vec![0.0; cols];
        let mut sum = 0.0;
        for (r, row) in values.chunks_exact(cols).enumerate() {
            view.decode_row(r, &mut back);
            for x in inputs.chunks_exact(cols) {
                let terms = row.iter().zip(&back).zip(x);
                sum += terms.map(|((a, b), x)| f64::from((a - b) * x)).sum::<f64>().powi(2);
            }
        }
        sum
    }

    #[test]
    fn products_lose_less_than_with_each_column_on_its_own() {
        let (cols, inputs) = (128, inputs(400, 128));
        // The number of rows is not a multiple of `ROWS`.
        let values = noise((ROWS + 3) * cols, 1);
        let feedback =
            ErrorFeedback::new(&moments(&inputs, cols), cols).expect("positive definite");
        let (mut alone, mut together) = (QuantisedRows::default(), QuantisedRows::default());
        quantise_rows_weighted(&values, AFFINE, &vec![1.0; cols], &mut alone).unwrap();
        let error = feedback_rows(&values, AFFINE, &feedback, &mut together).unwrap();
        together.view(cols, AFFINE).assert_sizes();
        let [alone, with] =
            [&alone, &together].map(|codes| product_noise(&values, codes, &inputs, cols));
        assert!(with < 0.5 * alone, "{with} {alone}");
        assert!(error.relative_rms() > 0.0 && error.relative_rms() < 1.0, "{error:?}");
    }

    #[test]
    fn inputs_that_do_not_depend_on_each_other_are_fitted() {
        let cols = 64;
        let mut moments = vec![0.0; cols * cols];
        let values = noise(5 * cols, 2);
        (0..cols).for_each(|i| moments[i * cols + i] = 2.0);
        let feedback = ErrorFeedback::new(&moments, cols).unwrap();
        let (mut alone, mut together) = (QuantisedRows::default(), QuantisedRows::default());
        let importance = [(1.0 + DAMPING) as f32; 64];
        quantise_rows_weighted(&values, AFFINE, &importance, &mut alone).unwrap();
        feedback_rows(&values, AFFINE, &feedback, &mut together).unwrap();
        assert_eq!(alone, together);
    }

    #[test]
    fn rows_do_not_depend_on_each_other() {
        let cols = FEEDBACK_COLUMNS + 64;
        let inputs = inputs(30, cols);
        let feedback = ErrorFeedback::new(&moments(&inputs, cols), cols).unwrap();
        let values = noise(ROWS * 2 * cols, 4);
        let mut all = QuantisedRows::default();
        feedback_rows(&values, AFFINE, &feedback, &mut all).unwrap();
        let mut each = QuantisedRows::default();
        for row in values.chunks_exact(cols) {
            feedback_rows(row, AFFINE, &feedback, &mut each).unwrap();
        }
        assert_eq!(all, each);
    }

    #[test]
    fn what_is_not_positive_definite_is_told() {
        assert!(ErrorFeedback::new(&[0.0; 32 * 32], 32).is_none());
        assert!(
            ErrorFeedback::new(&[f32::MAX; 32 * 32], 32)
                .is_some_and(|feedback| feedback.cols == 32)
        );
        let mut odd = vec![0.0; 32 * 32];
        (0..32).for_each(|i| odd[i * 32 + i] = 1.0);
        odd[32] = 5.0;
        odd[1] = 5.0;
        assert!(ErrorFeedback::new(&odd, 32).is_none());
        assert_eq!(ErrorFeedback::n_moments(usize::MAX), None);
    }

    #[test]
    fn names_the_element_that_cannot_be_quantised() {
        let mut values = noise(40 * 64, 5);
        values[33 * 64 + 40] = f32::INFINITY;
        let mut moments = vec![0.0; 64 * 64];
        (0..64).for_each(|i| moments[i * 64 + i] = 1.0);
        let feedback = ErrorFeedback::new(&moments, 64).unwrap();
        let got = feedback_rows(&values, AFFINE, &feedback, &mut QuantisedRows::default());
        assert_eq!(got.unwrap_err().idx, 33 * 64 + 40);
    }
}
