//! Activations rounded to one or two digits of 8 bits, group by group.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::cpu::Isa;
use crate::cpu::isa::for_every_isa;
use crate::cpu::pool::{Pool, SharedMut};

/// Rows of activations as the integer kernels take them: `x ≈ s * q`, where
/// the integers of a group reach up to 127, with two digits up to 127 * 256.
/// The memory is kept from call to call.
#[derive(Debug, Default)]
pub struct Quantised {
    /// Another one after every rounding, so that what was derived from the
    /// integers can tell whether it still holds.
    id: u64,
    n_rows: usize,
    cols: usize,
    group_size: usize,
    n_digits: usize,
    /// Bytes from one row and digit of `q` to the next.
    stride: usize,
    /// (n_rows, n_digits, cols), columns in natural order, the digit that
    /// counts 256 times first.
    q: Vec<i8>,
    /// Both digits of two columns together, the first one in the lower half:
    /// (n_rows, cols / 2).
    pairs: Vec<i32>,
    /// (n_rows, n_groups)
    s: Vec<f32>,
    /// `s` times the sum of the integers, (n_rows, n_groups).
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
        let n_groups = cols / group_size;
        let (q_bytes, per_task) = (n_digits * self.stride, TASK_ELEMENTS.div_ceil(cols.max(1)));
        let q_stride = self.stride;
        let n_pairs = cols / 2;
        let pairs = SharedMut::new(&mut self.pairs);
        let q = SharedMut::new(&mut self.q);
        let s = SharedMut::new(&mut self.s);
        let st = SharedMut::new(&mut self.st);
        pool.run(n_rows.div_ceil(per_task), &|task| {
            for row in task * per_task..((task + 1) * per_task).min(n_rows) {
                // SAFETY: each row belongs to one task.
                let q = unsafe { q.slice(row * q_bytes..(row + 1) * q_bytes) };
                // SAFETY: each row belongs to one task.
                let pairs = unsafe { pairs.slice(row * n_pairs..(row + 1) * n_pairs) };
                // SAFETY: each row belongs to one task.
                let s = unsafe { s.slice(row * n_groups..(row + 1) * n_groups) };
                // SAFETY: each row belongs to one task.
                let st = unsafe { st.slice(row * n_groups..(row + 1) * n_groups) };
                let x = &x[row * stride..][..cols];
                match group_size {
                    32 => quantise_row_32(isa, x, q, q_stride, pairs, s, st),
                    64 => quantise_row_64(isa, x, q, q_stride, pairs, s, st),
                    _ => quantise_row_128(isa, x, q, q_stride, pairs, s, st),
                }
            }
        });
    }

    fn resize(&mut self, rounding: &Rounding<'_>) {
        static N_ROUNDED: AtomicU64 = AtomicU64::new(1);
        self.id = N_ROUNDED.fetch_add(1, Ordering::Relaxed);
        let Rounding { n_rows, cols, group_size, n_digits, .. } = *rounding;
        let n_groups = cols / group_size;
        // An odd number of cache lines: rows side by side fall into different sets of the cache.
        let lines = cols.div_ceil(64) | 1;
        (self.n_rows, self.cols, self.group_size) = (n_rows, cols, group_size);
        self.n_digits = n_digits;
        self.stride = lines * 64;
        self.q.resize(n_rows * n_digits * self.stride, 0);
        self.pairs.resize(n_rows * cols / 2, 0);
        self.s.resize(n_rows * n_groups, 0.0);
        self.st.resize(n_rows * n_groups, 0.0);
    }

    /// No other integers have it.
    pub(super) fn id(&self) -> u64 {
        self.id
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

    /// The integers of a row, two columns together.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn pairs(&self, row: usize) -> &[i32] {
        &self.pairs[row * self.cols / 2..][..self.cols / 2]
    }

    /// The scale of each group of a row.
    pub(super) fn s(&self, row: usize) -> &[f32] {
        let n_groups = self.cols / self.group_size;
        &self.s[row * n_groups..][..n_groups]
    }

    /// The scale times the sum of the integers of each group of a row.
    pub(super) fn st(&self, row: usize) -> &[f32] {
        let n_groups = self.cols / self.group_size;
        &self.st[row * n_groups..][..n_groups]
    }
}

macro_rules! quantise_row {
    ($name:ident, $group:literal) => {
        for_every_isa! {
            fn $name(
                x: &[f32],
                q: &mut [i8],
                q_stride: usize,
                pairs: &mut [i32],
                s: &mut [f32],
                st: &mut [f32],
            ) {
                let (x, _) = x.as_chunks::<$group>();
                let (high, low) = q.split_at_mut(q_stride);
                let (high, _) = high.as_chunks_mut::<$group>();
                let (pairs, _) = pairs.as_chunks_mut::<{ $group / 2 }>();
                if low.is_empty() {
                    for ((((x, q), pairs), s), st) in x.iter().zip(high).zip(pairs).zip(s).zip(st) {
                        let mut codes = [0; $group];
                        (*s, *st) = quantise_group(x, ONE_DIGIT, &mut codes);
                        join_pairs(&codes, pairs);
                        for (q, code) in q.iter_mut().zip(codes) {
                            *q = code as i8;
                        }
                    }
                    return;
                }
                let digits = high.iter_mut().zip(low.as_chunks_mut::<$group>().0);
                for ((((x, (high, low)), pairs), s), st) in
                    x.iter().zip(digits).zip(pairs).zip(s).zip(st)
                {
                    let mut codes = [0; $group];
                    (*s, *st) = quantise_group(x, TWO_DIGITS, &mut codes);
                    join_pairs(&codes, pairs);
                    for ((high, low), code) in high.iter_mut().zip(low).zip(codes) {
                        *high = ((code + 128) >> 8) as i8;
                        // What is left lies between -128 and 127.
                        *low = code as i8;
                    }
                }
            }
        }
    };
}

quantise_row!(quantise_row_32, 32);
quantise_row!(quantise_row_64, 64);
quantise_row!(quantise_row_128, 128);

/// The largest integer of one digit.
const ONE_DIGIT: i32 = 127;
/// And of two.
const TWO_DIGITS: i32 = 127 * 256;

#[inline(always)]
fn join_pairs(codes: &[i32], pairs: &mut [i32]) {
    for (pair, codes) in pairs.iter_mut().zip(codes.as_chunks::<2>().0) {
        *pair = codes[0] & 0xffff | codes[1] << 16;
    }
}

/// Rounds one group; returns its scale, and the scale times the sum.
#[inline(always)]
fn quantise_group<const N: usize>(x: &[f32; N], largest: i32, codes: &mut [i32; N]) -> (f32, f32) {
    // As integers, so that a NaN is the largest and the order of comparing does not matter.
    let max = x.iter().fold(0u32, |max, it| max.max(it.to_bits() & 0x7fff_ffff));
    let max = f32::from_bits(max);
    let factor = if max == 0.0 { 0.0 } else { largest as f32 / max };
    let mut sum = 0i32;
    for (code, x) in codes.iter_mut().zip(x) {
        // The factor of denormals is infinite: hence the clamp.
        let rounded = ((x * factor).round_ties_even() as i32).clamp(-largest, largest);
        sum += rounded;
        *code = rounded;
    }
    let s = max / largest as f32;
    (s, s * sum as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantised(
        isa: Isa,
        x: &[f32],
        n_rows: usize,
        group_size: usize,
        n_digits: usize,
    ) -> Quantised {
        let mut out = Quantised::default();
        let cols = x.len() / n_rows;
        let rounding = Rounding { x, stride: cols, n_rows, cols, group_size, n_digits };
        out.quantise(&Pool::new(2), isa, rounding);
        out
    }

    /// The integers of a row.
    fn codes(it: &Quantised, row: usize) -> Vec<i32> {
        let high = it.q(row, 0).iter().map(|it| i32::from(*it));
        if it.n_digits() == 1 {
            return high.collect();
        }
        high.zip(it.q(row, 1)).map(|(high, low)| 256 * high + i32::from(*low)).collect()
    }

    #[test]
    fn follows_the_contract_on_every_isa() {
        let x: Vec<f32> = (0..3 * 384)
            .map(|i| ((i * 7919 % 2003) as f32 / 500.0 - 2.0) * 10f32.powi(i / 128 * 7 - 30))
            .collect();
        let cases = [32, 64, 128].map(|group| [(group, 1, 127.0), (group, 2, 127.0 * 256.0)]);
        for isa in Isa::available() {
            for (group, n_digits, largest) in cases.into_iter().flatten() {
                check_codes(&quantised(isa, &x, 3, group, n_digits), &x, largest);
            }
        }
    }

    #[track_caller]
    fn check_codes(got: &Quantised, x: &[f32], largest: f32) {
        let group = got.group_size();
        for row in 0..3 {
            let codes = codes(got, row);
            for (g, x) in x[row * 384..][..384].chunks(group).enumerate() {
                let max = x.iter().fold(0f32, |a, b| a.max(b.abs()));
                let want: Vec<i32> =
                    x.iter().map(|it| (it * (largest / max)).round_ties_even() as i32).collect();
                assert_eq!(codes[g * group..][..group], want, "{got:?}");
                let sum: i32 = want.iter().sum();
                assert_eq!(got.s(row)[g].to_bits(), (max / largest).to_bits());
                assert_eq!(got.st(row)[g].to_bits(), (max / largest * sum as f32).to_bits());
            }
        }
    }

    #[test]
    fn zeros_stay_zero() {
        for isa in Isa::available() {
            let got = quantised(isa, &[0.0, -0.0].repeat(32), 1, 64, 2);
            assert!(codes(&got, 0).iter().all(|it| *it == 0));
            assert_eq!((got.s(0)[0], got.st(0)[0]), (0.0, 0.0));
        }
    }

    #[test]
    fn what_is_not_finite_does_not_pass_for_a_number() {
        for isa in Isa::available() {
            for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut x = vec![1.0; 64];
                x[17] = wrong;
                let got = quantised(isa, &x, 1, 32, 2);
                assert!(got.st(0)[0].is_nan(), "{isa:?} {wrong}");
                assert!(got.st(0)[1].is_finite());
            }
        }
    }

    #[test]
    fn denormals_stay_within_bounds() {
        for isa in Isa::available() {
            let x: Vec<f32> = (0..64).map(|i| f32::from_bits((i % 4) | ((i & 1) << 31))).collect();
            for (n_digits, largest) in [(1, ONE_DIGIT), (2, TWO_DIGITS)] {
                let got = quantised(isa, &x, 1, 64, n_digits);
                assert!(codes(&got, 0).iter().all(|it| it.abs() <= largest), "{isa:?}");
            }
        }
    }
}
