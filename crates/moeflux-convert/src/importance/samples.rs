//! Samples of the rows that a layer's experts got, with the experts of each row. They show
//! which columns of an expert's inputs are correlated.

use moeflux_core::ExpertId;
use moeflux_core::quant::{ErrorFeedback, Float};

/// How inputs are kept.
pub(crate) const STORED: Float = Float::BF16;

/// Rows of a layer that are kept at most, and bytes of them.
const MAX_ROWS: usize = 16 << 10;
const MAX_BYTES: usize = 32 << 20;

/// Rows that all samples count as, where an expert is judged: one that got
/// fewer is taken to be more like the others than like what those few show.
const PRIOR_ROWS: f64 = 256.0;

/// Rows of a layer, evenly spaced over all that it saw.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Samples {
    pub(crate) hidden: usize,
    pub(crate) top_k: usize,
    /// `(n, hidden)`: what gate and up multiplied, as it is stored.
    pub(crate) inputs: Vec<u8>,
    /// `(n, top_k)`: the experts that got it.
    pub(crate) experts: Vec<u32>,
    /// `(n, top_k)`: how much the output of each counted.
    pub(crate) weights: Vec<f32>,
    n_seen: usize,
    /// One row in `2^stride_bits` is kept.
    stride_bits: u32,
}

impl Samples {
    pub(crate) fn new(hidden: usize, top_k: usize) -> Samples {
        Samples { hidden, top_k, ..Samples::default() }
    }

    /// What was kept of a layer; three parts that belong together.
    pub(crate) fn kept(self, inputs: Vec<u8>, experts: Vec<u32>, weights: Vec<f32>) -> Samples {
        Samples { inputs, experts, weights, ..self }
    }

    /// Takes the next rows of `x`, each `hidden` wide.
    pub(crate) fn see<'a>(
        &mut self,
        x: impl Iterator<Item = &'a [f32]>,
        experts: &[ExpertId],
        weights: &[f32],
    ) {
        let chosen = experts.chunks_exact(self.top_k).zip(weights.chunks_exact(self.top_k));
        for (x, (experts, weights)) in x.zip(chosen) {
            if self.n_seen.is_multiple_of(1 << self.stride_bits) {
                x[..self.hidden].iter().for_each(|value| STORED.append(*value, &mut self.inputs));
                self.experts.extend(experts.iter().map(|expert| expert.idx() as u32));
                self.weights.extend_from_slice(weights);
            }
            self.n_seen += 1;
            if self.n_rows() == max_rows(self.hidden) {
                self.thin();
            }
        }
    }

    /// Forgets every other row.
    fn thin(&mut self) {
        let row_bytes = self.row_bytes();
        keep_even(&mut self.inputs, row_bytes);
        keep_even(&mut self.experts, self.top_k);
        keep_even(&mut self.weights, self.top_k);
        self.stride_bits += 1;
    }

    pub(crate) fn n_rows(&self) -> usize {
        self.inputs.len() / self.row_bytes().max(1)
    }

    fn row_bytes(&self) -> usize {
        self.hidden * STORED.bytes()
    }

    pub(crate) fn is_finite(&self) -> bool {
        let mut row = vec![0.0; self.hidden];
        let mut rows = self.inputs.chunks_exact(self.row_bytes());
        let is_finite = |bytes| {
            STORED.decode(bytes, &mut row);
            row.iter().all(|value| value.is_finite())
        };
        rows.all(is_finite) && self.weights.iter().all(|weight| weight.is_finite())
    }

    /// How the inputs of gate and up depend on each other, by all samples.
    pub(crate) fn pooled(&self) -> Vec<f32> {
        self.moments(|_| true).0
    }

    /// How the inputs of one expert depend on each other. The rows of all experts count besides,
    /// the less the more rows this one got.
    pub(crate) fn of_expert(&self, expert: usize, pooled: &[f32]) -> Option<ErrorFeedback> {
        let (mut moments, n_rows) = self.moments(|id| id as usize == expert);
        let share = (n_rows as f64 / (n_rows as f64 + PRIOR_ROWS)) as f32;
        for (own, all) in moments.iter_mut().zip(pooled) {
            *own = share * *own + (1.0 - share) * all;
        }
        ErrorFeedback::new(&moments, self.hidden)
    }

    /// Second moments of the rows of some experts, in units of the mean square,
    /// and how many rows there are.
    fn moments(&self, wanted: impl Fn(u32) -> bool) -> (Vec<f32>, usize) {
        let chosen =
            self.experts.chunks_exact(self.top_k).zip(self.weights.chunks_exact(self.top_k));
        let count = |(experts, weights): (&[u32], &[f32])| -> f32 {
            let wanted = experts.iter().zip(weights).filter(|expert| wanted(*expert.0));
            wanted.map(|(_, weight)| weight * weight).sum()
        };
        let rows: Vec<(f32, Vec<f32>)> = chosen
            .map(count)
            .zip(self.inputs.chunks_exact(self.row_bytes()))
            .filter(|(count, _)| *count > 0.0)
            .map(|(count, bytes)| {
                let mut x = vec![0.0; self.hidden];
                STORED.decode(bytes, &mut x);
                (count, x)
            })
            .collect();
        let n_moments = ErrorFeedback::n_moments(self.hidden).expect("inputs are in memory");
        let mut moments = vec![0.0; n_moments];
        add_products(&mut moments, &rows);
        let squares = |(count, x): &(f32, Vec<f32>)| -> f64 {
            f64::from(*count) * x.iter().map(|value| f64::from(value * value)).sum::<f64>()
        };
        let mean = rows.iter().map(squares).sum::<f64>() / self.hidden as f64;
        if mean > 0.0 {
            moments.iter_mut().for_each(|moment| *moment = (f64::from(*moment) / mean) as f32);
        }
        (moments, rows.len())
    }
}

fn max_rows(hidden: usize) -> usize {
    (MAX_BYTES / STORED.bytes() / hidden.max(1)).clamp(2, MAX_ROWS)
}

/// Keeps the rows with even numbers.
fn keep_even<T: Copy>(rows: &mut Vec<T>, width: usize) {
    let n_rows = rows.len() / width;
    for row in 1..n_rows.div_ceil(2) {
        rows.copy_within(2 * row * width..(2 * row + 1) * width, row * width);
    }
    rows.truncate(n_rows.div_ceil(2) * width);
}

/// Adds the products of two columns of each row, as often as it counts: the
/// lower half of a matrix for each block of columns.
fn add_products(mut moments: &mut [f32], rows: &[(f32, Vec<f32>)]) {
    let Some((_, row)) = rows.first() else { return };
    let mut first = 0;
    for n in ErrorFeedback::blocks(row.len()) {
        let (block, rest) = moments.split_at_mut(n * n);
        for (i, sums) in block.chunks_exact_mut(n).enumerate() {
            for (count, x) in rows {
                let x = &x[first..=first + i];
                let by = count * x[i];
                sums.iter_mut().zip(x).for_each(|(sum, x)| *sum += by * x);
            }
        }
        (moments, first) = (rest, first + n);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(n: usize) -> [f32; 4] {
        std::array::from_fn(|i| ((n * 37 + i * 11) % 64) as f32 / 32.0 - 1.0)
    }

    /// Samples of a layer of five experts after `n` rows in chunks of `chunk`.
    fn seen(n: usize, chunk: usize) -> Samples {
        let mut samples = Samples::new(4, 2);
        let rows: Vec<[f32; 4]> = (0..n).map(row).collect();
        let experts: Vec<ExpertId> = (0..n)
            .flat_map(|i| [i % 5, (i + 1 + i % 3) % 5])
            .map(|id| ExpertId(id as u16))
            .collect();
        let weights: Vec<f32> = (0..2 * n).map(|i| (i % 7 + 1) as f32 / 8.0).collect();
        for first in (0..n).step_by(chunk) {
            let end = n.min(first + chunk);
            let chosen = 2 * first..2 * end;
            let x = rows[first..end].iter().map(|row| &row[..]);
            samples.see(x, &experts[chosen.clone()], &weights[chosen]);
        }
        samples
    }

    #[test]
    fn rows_are_evenly_spaced_whatever_the_chunks() {
        let n = 3 * MAX_ROWS + 5;
        let samples = seen(n, 1000);
        assert_eq!(samples, seen(n, 17));
        // Thinned at MAX_ROWS and at twice as many.
        let want: Vec<usize> = (0..n).step_by(4).collect();
        assert_eq!(samples.n_rows(), want.len());
        for (i, n) in want.into_iter().enumerate() {
            let mut got = [0.0; 4];
            STORED.decode(&samples.inputs[8 * i..][..8], &mut got);
            assert_eq!(got, row(n));
            assert_eq!(samples.experts[2 * i] as usize, n % 5);
            assert_eq!(samples.weights[2 * i], (2 * n % 7 + 1) as f32 / 8.0);
        }
    }

    #[test]
    fn moments_are_those_of_the_rows_that_an_expert_got() {
        let samples = seen(40, 40);
        let (moments, n_rows) = samples.moments(|sample| sample == 3);
        let mut want = [0f64; 16];
        let mut n_want = 0;
        for n in 0..40 {
            let chosen = samples.experts[2 * n..][..2].iter().zip(&samples.weights[2 * n..][..2]);
            let count: f32 =
                chosen.filter(|chosen| *chosen.0 == 3).map(|chosen| chosen.1 * chosen.1).sum();
            n_want += usize::from(count > 0.0);
            for (at, want) in want.iter_mut().enumerate() {
                let product = row(n)[at / 4] * row(n)[at % 4];
                *want += if at % 4 <= at / 4 { f64::from(count * product) } else { 0.0 };
            }
        }
        assert_eq!(n_rows, n_want);
        let mean = (0..4).map(|i| want[5 * i]).sum::<f64>() / 4.0;
        for (got, want) in moments.iter().zip(want) {
            assert!((f64::from(*got) - want / mean).abs() < 1e-4, "{got} {}", want / mean);
        }
        assert!(samples.of_expert(3, &samples.pooled()).is_some());
        assert!(samples.of_expert(4, &samples.pooled()).is_some());
        // One that got nothing is judged by what the others got.
        assert!(samples.of_expert(77, &samples.pooled()).is_some());
    }
}
