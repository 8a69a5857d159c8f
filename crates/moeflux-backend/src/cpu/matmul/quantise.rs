//! Activations rounded to one or two digits of 8 bits, group by group.

use crate::cpu::Isa;
use crate::cpu::isa::for_every_isa;
use crate::cpu::pool::{Pool, SharedMut};

/// Rows of activations as the integer kernels take them: `x ≈ s * q` with
/// `s = max|x| / 127` of each group, and where there is a second digit, the
/// same again of what the first one leaves: `x ≈ s * q + s' * q'`. The memory
/// is kept from call to call.
#[derive(Debug, Default)]
pub struct Quantised {
    n_rows: usize,
    cols: usize,
    group_size: usize,
    n_digits: usize,
    /// Bytes from one row of `q` to the next.
    stride: usize,
    /// (n_rows, n_digits, cols), columns in natural order.
    q: Vec<i8>,
    /// (n_rows, n_digits, n_groups)
    s: Vec<f32>,
    /// `s` times the sum of `q`, (n_rows, n_digits, n_groups).
    st: Vec<f32>,
}

/// What is to be rounded, and how.
#[derive(Clone, Copy, Debug)]
pub struct Rounding<'a> {
    /// All rows.
    pub x: &'a [f32],
    /// Elements from one row to the next.
    pub stride: usize,
    /// How many rows.
    pub n_rows: usize,
    /// Elements of a row.
    pub cols: usize,
    /// Columns that share a scale: 32, 64 or 128.
    pub group_size: usize,
    /// 1 or 2.
    pub n_digits: usize,
}

/// Elements worth a task of their own.
const TASK_ELEMENTS: usize = 16 * 1024;

impl Quantised {
    /// Rounds rows.
    ///
    /// A group with an infinity or a NaN makes every output NaN that uses it.
    pub fn quantise(&mut self, pool: &Pool, isa: Isa, rounding: Rounding<'_>) {
        let Rounding { x, stride, n_rows, cols, group_size, n_digits } = rounding;
        assert!(matches!(group_size, 32 | 64 | 128), "groups of {group_size}");
        assert!(cols.is_multiple_of(group_size), "{cols} columns in groups of {group_size}");
        assert!(matches!(n_digits, 1 | 2), "{n_digits} digits");
        self.resize(&rounding);
        let n_params = n_digits * (cols / group_size);
        let (q_bytes, per_task) = (n_digits * self.stride, TASK_ELEMENTS.div_ceil(cols.max(1)));
        let q_stride = self.stride;
        let q = SharedMut::new(&mut self.q);
        let s = SharedMut::new(&mut self.s);
        let st = SharedMut::new(&mut self.st);
        pool.run(n_rows.div_ceil(per_task), &|task| {
            for row in task * per_task..((task + 1) * per_task).min(n_rows) {
                // SAFETY: each row belongs to one task.
                let q = unsafe { q.slice(row * q_bytes..(row + 1) * q_bytes) };
                // SAFETY: each row belongs to one task.
                let s = unsafe { s.slice(row * n_params..(row + 1) * n_params) };
                // SAFETY: each row belongs to one task.
                let st = unsafe { st.slice(row * n_params..(row + 1) * n_params) };
                let x = &x[row * stride..][..cols];
                match group_size {
                    32 => quantise_row_32(isa, x, q, q_stride, s, st),
                    64 => quantise_row_64(isa, x, q, q_stride, s, st),
                    _ => quantise_row_128(isa, x, q, q_stride, s, st),
                }
            }
        });
    }

    fn resize(&mut self, rounding: &Rounding<'_>) {
        let Rounding { n_rows, cols, group_size, n_digits, .. } = *rounding;
        let n_groups = cols / group_size;
        // An odd number of cache lines: rows side by side fall into different sets of the cache.
        let lines = cols.div_ceil(64) | 1;
        (self.n_rows, self.cols, self.group_size) = (n_rows, cols, group_size);
        self.n_digits = n_digits;
        self.stride = lines * 64;
        self.q.resize(n_rows * n_digits * self.stride, 0);
        self.s.resize(n_rows * n_digits * n_groups, 0.0);
        self.st.resize(n_rows * n_digits * n_groups, 0.0);
    }

    /// Rows.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Columns of a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Columns that share a scale.
    pub fn group_size(&self) -> usize {
        self.group_size
    }

    /// Digits of an element.
    pub fn n_digits(&self) -> usize {
        self.n_digits
    }

    /// The integers of one digit of a row.
    pub(super) fn q(&self, row: usize, digit: usize) -> &[i8] {
        &self.q[(row * self.n_digits + digit) * self.stride..][..self.cols]
    }

    /// The scale of each group of one digit of a row.
    pub(super) fn s(&self, row: usize, digit: usize) -> &[f32] {
        let n_groups = self.cols / self.group_size;
        &self.s[(row * self.n_digits + digit) * n_groups..][..n_groups]
    }

    /// The scale times the sum of the integers of each group of one digit of a
    /// row.
    pub(super) fn st(&self, row: usize, digit: usize) -> &[f32] {
        let n_groups = self.cols / self.group_size;
        &self.st[(row * self.n_digits + digit) * n_groups..][..n_groups]
    }
}

macro_rules! quantise_row {
    ($name:ident, $group:literal) => {
        for_every_isa! {
            fn $name(
                x: &[f32],
                q: &mut [i8],
                q_stride: usize,
                s: &mut [f32],
                st: &mut [f32],
            ) {
                let (x, _) = x.as_chunks::<$group>();
                let n_groups = x.len();
                for (g, x) in x.iter().enumerate() {
                    let mut rest = *x;
                    for (digit, q) in q.chunks_exact_mut(q_stride).enumerate() {
                        let at = digit * n_groups + g;
                        let q = &mut q.as_chunks_mut::<$group>().0[g];
                        (s[at], st[at]) = quantise_group(&rest, q);
                        for (rest, q) in rest.iter_mut().zip(q) {
                            *rest = f32::from(*q).mul_add(-s[at], *rest);
                        }
                    }
                }
            }
        }
    };
}

quantise_row!(quantise_row_32, 32);
quantise_row!(quantise_row_64, 64);
quantise_row!(quantise_row_128, 128);

/// Rounds one group; returns its scale, and the scale times the sum.
#[inline(always)]
fn quantise_group<const N: usize>(x: &[f32; N], q: &mut [i8; N]) -> (f32, f32) {
    // As integers, so that a NaN is the largest and the order of comparing does not matter.
    let max = x.iter().fold(0u32, |max, it| max.max(it.to_bits() & 0x7fff_ffff));
    let max = f32::from_bits(max);
    let factor = if max == 0.0 { 0.0 } else { 127.0 / max };
    let mut sum = 0i32;
    for (q, x) in q.iter_mut().zip(x) {
        // The factor of denormals is infinite: hence the clamp.
        let rounded = ((x * factor).round_ties_even() as i32).clamp(-127, 127);
        sum += rounded;
        *q = rounded as i8;
    }
    let s = max / 127.0;
    (s, s * sum as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantised(isa: Isa, x: &[f32], n_rows: usize, group_size: usize) -> Quantised {
        let mut out = Quantised::default();
        let cols = x.len() / n_rows;
        let rounding = Rounding { x, stride: cols, n_rows, cols, group_size, n_digits: 2 };
        out.quantise(&Pool::new(2), isa, rounding);
        out
    }

    #[test]
    fn follows_the_contract_on_every_isa() {
        let x: Vec<f32> = (0..3 * 384)
            .map(|i| ((i * 7919 % 2003) as f32 / 500.0 - 2.0) * 10f32.powi(i / 128 * 7 - 30))
            .collect();
        for (isa, group) in
            Isa::available().into_iter().flat_map(|it| [32, 64, 128].map(|g| (it, g)))
        {
            let got = quantised(isa, &x, 3, group);
            for row in 0..3 {
                for (g, x) in x[row * 384..][..384].chunks(group).enumerate() {
                    let max = x.iter().fold(0f32, |a, b| a.max(b.abs()));
                    let want: Vec<i8> =
                        x.iter().map(|it| (it * (127.0 / max)).round_ties_even() as i8).collect();
                    assert_eq!(
                        &got.q(row, 0)[g * group..][..group],
                        want,
                        "{isa:?} {group} {row} {g}"
                    );
                    let sum: i32 = want.iter().map(|it| i32::from(*it)).sum();
                    assert_eq!(got.s(row, 0)[g].to_bits(), (max / 127.0).to_bits());
                    assert_eq!(got.st(row, 0)[g].to_bits(), (max / 127.0 * sum as f32).to_bits());
                }
            }
        }
    }

    #[test]
    fn the_second_digit_holds_what_the_first_one_leaves() {
        let x: Vec<f32> = (0..256).map(|i| (i * 7919 % 2003) as f32 / 500.0 - 2.0).collect();
        for isa in Isa::available() {
            let got = quantised(isa, &x, 1, 64);
            for (i, x) in x.iter().enumerate() {
                let digit = |d| f32::from(got.q(0, d)[i]) * got.s(0, d)[i / 64];
                let error = (x - digit(0) - digit(1)).abs();
                // Half a step of the second digit, whose group spans one step of the first.
                assert!(error <= got.s(0, 0)[i / 64] / 2.0 / 127.0, "{isa:?} {i}: {error}");
            }
        }
    }

    #[test]
    fn zeros_stay_zero() {
        for isa in Isa::available() {
            let got = quantised(isa, &[0.0, -0.0].repeat(32), 1, 64);
            assert!(got.q(0, 0).iter().chain(got.q(0, 1)).all(|it| *it == 0));
            assert_eq!((got.s(0, 1)[0], got.st(0, 0)[0]), (0.0, 0.0));
        }
    }

    #[test]
    fn what_is_not_finite_does_not_pass_for_a_number() {
        for isa in Isa::available() {
            for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut x = vec![1.0; 64];
                x[17] = wrong;
                let got = quantised(isa, &x, 1, 32);
                assert!(got.st(0, 0)[0].is_nan(), "{isa:?} {wrong}");
                assert!(got.st(0, 0)[1].is_finite());
            }
        }
    }

    #[test]
    fn denormals_stay_within_bounds() {
        for isa in Isa::available() {
            let x: Vec<f32> = (0..64).map(|i| f32::from_bits((i % 4) | ((i & 1) << 31))).collect();
            let got = quantised(isa, &x, 1, 64);
            assert!(got.q(0, 0).iter().chain(got.q(0, 1)).all(|it| (-127..=127).contains(it)), "{isa:?}");
        }
    }
}
