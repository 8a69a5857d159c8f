//! Activations rounded to one or two limbs of 8 bits, group by group.

use std::sync::atomic::{AtomicU64, Ordering};

use super::quantised::Quantised;
use super::rounded_row::RoundedRow;
use crate::cpu::Isa;

#[cfg(target_arch = "x86_64")]
use crate::cpu::isa::Level;
use crate::cpu::isa::for_every_isa;
use crate::cpu::pool::{Pool, SharedMut};

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
    /// Columns that share a scale: 16, 32, 64 or 128.
    pub group_size: usize,
    /// 1 or 2.
    pub n_limbs: usize,
}

/// Elements that are worth a task.
const TASK_ELEMENTS: usize = 16 * 1024;

impl Quantised {
    /// Rounds rows.
    ///
    /// A group with an infinity or a NaN makes every output NaN that uses it.
    pub fn quantise(&mut self, pool: &Pool, isa: Isa, rounding: Rounding<'_>) {
        let Rounding { x, stride, n_rows, cols, group_size, n_limbs } = rounding;
        assert!(matches!(group_size, 16 | 32 | 64 | 128), "groups of {group_size}");
        assert!(cols.is_multiple_of(group_size), "{cols} columns in groups of {group_size}");
        assert!(matches!(n_limbs, 1 | 2), "{n_limbs} limbs");
        self.resize(isa, &rounding);
        let n_groups = cols / group_size;
        let (q_bytes, per_task) = (n_limbs * self.stride, TASK_ELEMENTS.div_ceil(cols.max(1)));
        let q_stride = self.stride;
        let n_pairs = if reads_pairs(isa) { cols / 2 } else { 0 };
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
                let out = RoundedRow { q, q_stride, pairs, s, st };
                quantise_row(isa, x, group_size, n_limbs, out);
            }
        });
    }

    fn resize(&mut self, isa: Isa, rounding: &Rounding<'_>) {
        static N_ROUNDED: AtomicU64 = AtomicU64::new(1);
        self.id = N_ROUNDED.fetch_add(1, Ordering::Relaxed);
        let Rounding { n_rows, cols, group_size, n_limbs, .. } = *rounding;
        let n_groups = cols / group_size;
        // An odd number of cache lines: rows side by side fall into different sets of the cache.
        let lines = cols.div_ceil(64) | 1;
        (self.n_rows, self.cols, self.group_size) = (n_rows, cols, group_size);
        self.n_limbs = n_limbs;
        self.stride = lines * 64;
        self.q.resize(n_rows * n_limbs * self.stride, 0);
        let n_pairs = if reads_pairs(isa) { n_rows * cols / 2 } else { 0 };
        self.pairs.resize(n_pairs, 0);
        self.s.resize(n_rows * n_groups, 0.0);
        self.st.resize(n_rows * n_groups, 0.0);
    }
}

/// Whether kernels of this instruction set read two columns together.
fn reads_pairs(isa: Isa) -> bool {
    match isa.level() {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::AvxVnni => true,
        _ => false,
    }
}

fn quantise_row(isa: Isa, x: &[f32], group_size: usize, n_limbs: usize, out: RoundedRow<'_>) {
    let largest = if n_limbs == 1 { ONE_LIMB } else { TWO_LIMBS };
    match isa.level() {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::AvxVnni if group_size == 16 => {
            let RoundedRow { q, q_stride, pairs, s, st } = out;
            let plain = RoundedRow { q: &mut *q, q_stride, pairs: &mut [], s, st };
            plain_row(isa, x, group_size, largest, plain);
            pair_columns(q, q_stride, pairs);
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: holding this `Isa` proves that the machine has AVX2.
        Level::Avx2 | Level::AvxVnni => unsafe {
            super::avx2::quantise_row(x, group_size, largest, out);
        },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: holding this `Isa` proves that the machine has these parts of AVX-512.
        Level::Avx512 | Level::Amx => unsafe {
            super::avx512::quantise_row(x, group_size, largest, out);
        },
        _ => plain_row(isa, x, group_size, largest, out),
    }
}

for_every_isa! {
    /// The definition.
    fn plain_row(x: &[f32], group_size: usize, largest: i32, out: RoundedRow<'_>) {
        let (high, low) = out.q.split_at_mut(out.q_stride);
        for (g, (s, st)) in out.s.iter_mut().zip(out.st).enumerate() {
            let at = g * group_size..(g + 1) * group_size;
            let mut codes = [0; MAX_GROUP];
            let codes = &mut codes[..group_size];
            (*s, *st) = quantise_group(&x[at.clone()], largest, codes);
            if low.is_empty() {
                for (q, code) in high[at].iter_mut().zip(codes) {
                    *q = *code as i8;
                }
                continue;
            }
            let limbs = high[at.clone()].iter_mut().zip(&mut low[at]);
            for ((high, low), code) in limbs.zip(codes) {
                *high = ((*code + 128) >> 8) as i8;
                // What is left is between -128 and 127.
                *low = *code as i8;
            }
        }
    }
}

/// Writes both limbs of two columns together.
#[cfg(target_arch = "x86_64")]
fn pair_columns(q: &[i8], q_stride: usize, pairs: &mut [i32]) {
    let (high, low) = q.split_at(q_stride);
    let code = |col: usize| match low.get(col) {
        Some(low) => 256 * i32::from(high[col]) + i32::from(*low),
        None => i32::from(high[col]),
    };
    for (i, pair) in pairs.iter_mut().enumerate() {
        *pair = code(2 * i) & 0xffff | code(2 * i + 1) << 16;
    }
}

/// Columns that share a scale, at most.
const MAX_GROUP: usize = 128;

/// The largest integer of one limb.
const ONE_LIMB: i32 = 127;
/// And of two.
const TWO_LIMBS: i32 = 127 * 256;

/// Rounds one group; returns its scale, and the scale times the sum.
#[inline(always)]
fn quantise_group(x: &[f32], largest: i32, codes: &mut [i32]) -> (f32, f32) {
    // As integers, so that a NaN is the largest and the order of comparing does not matter.
    let max = x.iter().fold(0u32, |max, value| max.max(value.to_bits() & 0x7fff_ffff));
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
        n_limbs: usize,
    ) -> Quantised {
        let mut out = Quantised::default();
        let cols = x.len() / n_rows;
        let rounding = Rounding { x, stride: cols, n_rows, cols, group_size, n_limbs };
        out.quantise(&Pool::new(2), isa, rounding);
        out
    }

    /// The integers of a row.
    fn codes(rounded: &Quantised, row: usize) -> Vec<i32> {
        let high = rounded.q(row, 0).iter().map(|code| i32::from(*code));
        if rounded.n_limbs() == 1 {
            return high.collect();
        }
        high.zip(rounded.q(row, 1)).map(|(high, low)| 256 * high + i32::from(*low)).collect()
    }

    #[test]
    fn follows_the_contract_on_every_isa() {
        let x: Vec<f32> = (0..3 * 384)
            .map(|i| ((i * 7919 % 2003) as f32 / 500.0 - 2.0) * 10f32.powi(i / 128 * 7 - 30))
            .collect();
        let cases = [16, 32, 64, 128].map(|group| [(group, 1, 127.0), (group, 2, 127.0 * 256.0)]);
        for isa in Isa::available() {
            for (group, n_limbs, largest) in cases.into_iter().flatten() {
                check_codes(&quantised(isa, &x, 3, group, n_limbs), &x, largest);
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
                let want: Vec<i32> = x
                    .iter()
                    .map(|value| (value * (largest / max)).round_ties_even() as i32)
                    .collect();
                assert_eq!(codes[g * group..][..group], want, "{got:?}");
                let sum: i32 = want.iter().sum();
                assert_eq!(got.s(row)[g].to_bits(), (max / largest).to_bits());
                assert_eq!(got.st(row)[g].to_bits(), (max / largest * sum as f32).to_bits());
            }
        }
    }

    #[test]
    fn every_isa_has_the_bits_of_the_definition() {
        let special = [0.0, -0.0, f32::MIN_POSITIVE, 1e-45, -1e-40, f32::MAX, 0.5, -2.5];
        let wrong = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
        let x: Vec<f32> = (0..2 * 640)
            .map(|i| match i {
                200..232 => special[i % 8] * 1e-38,
                256..384 => special[i % 4],
                700..703 => wrong[i - 700],
                _ if i % 11 == 3 => special[i % 8],
                _ => {
                    ((i * 7919 % 2003) as f32 / 500.0 - 2.0) * 10f32.powi((i / 128) as i32 * 5 - 20)
                }
            })
            .collect();
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        for (group, n_limbs) in
            [16, 32, 64, 128].into_iter().flat_map(|group| [(group, 1), (group, 2)])
        {
            let want = quantised(Isa::SCALAR, &x, 2, group, n_limbs);
            for isa in Isa::available() {
                let got = quantised(isa, &x, 2, group, n_limbs);
                for row in 0..2 {
                    let what = format!("{isa:?}, groups of {group}, {n_limbs} limbs, row {row}");
                    assert_eq!(codes(&got, row), codes(&want, row), "{what}");
                    assert_eq!(bits(got.s(row)), bits(want.s(row)), "{what}");
                    assert_eq!(bits(got.st(row)), bits(want.st(row)), "{what}");
                    #[cfg(target_arch = "x86_64")]
                    if reads_pairs(isa) {
                        let pairs = codes(&want, row);
                        let pairs = pairs.chunks(2).map(|pair| pair[0] & 0xffff | pair[1] << 16);
                        assert_eq!(got.pairs(row), pairs.collect::<Vec<_>>(), "{what}");
                    }
                }
            }
        }
    }

    #[test]
    fn zeros_stay_zero() {
        for isa in Isa::available() {
            let got = quantised(isa, &[0.0, -0.0].repeat(32), 1, 64, 2);
            assert!(codes(&got, 0).iter().all(|code| *code == 0));
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
            for (n_limbs, largest) in [(1, ONE_LIMB), (2, TWO_LIMBS)] {
                let got = quantised(isa, &x, 1, 64, n_limbs);
                assert!(codes(&got, 0).iter().all(|code| code.abs() <= largest), "{isa:?}");
            }
        }
    }
}
