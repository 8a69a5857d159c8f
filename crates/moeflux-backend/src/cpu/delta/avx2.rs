//! The recurrence for sixteen vector registers: two rows of a state at a time.

use std::arch::x86_64::*;

use super::run::{Next, Now};
use super::{MOST_ROWS, Run};
use crate::cpu::columns::Columns;
use crate::cpu::eights::{load, store, tree_sums};
use crate::cpu::math::LANES;

/// Two rows of a state, by halves of blocks of lanes: at an even place lower
/// partial sums, at an odd one upper ones.
struct Pair<'a> {
    a: &'a mut [[f32; 8]],
    b: &'a mut [[f32; 8]],
}

/// Adds products of both rows to their halves of partial sums.
type Sums = [[__m256; 2]; 2];

impl<'a> Pair<'a> {
    fn new(rows: &'a mut [f32]) -> Pair<'a> {
        let (a, b) = rows.split_at_mut(rows.len() / 2);
        Pair { a: a.as_chunks_mut().0, b: b.as_chunks_mut().0 }
    }

    /// Decays and predicts.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn begin<const COLUMNS: bool>(self, next: Next<'_>) -> [f32; 2] {
        let (a, b, k) = (self.a, self.b, next.k.as_chunks().0);
        let n = k.len();
        let (a, b) = (&mut a[..n], &mut b[..n]);
        let all = _mm256_set1_ps(next.decay);
        let decays = next.lanes::<COLUMNS>();
        let mut predicted = zero();
        for c in (0..n - n % 2).step_by(2) {
            for h in 0..2 {
                let k = load(&k[c + h]);
                let decay = if COLUMNS { load_half(&decays[c / 2], h) } else { all };
                let new_a = _mm256_mul_ps(load(&a[c + h]), decay);
                let new_b = _mm256_mul_ps(load(&b[c + h]), decay);
                predicted[0][h] = _mm256_fmadd_ps(new_a, k, predicted[0][h]);
                predicted[1][h] = _mm256_fmadd_ps(new_b, k, predicted[1][h]);
                store(&mut a[c + h], new_a);
                store(&mut b[c + h], new_b);
            }
        }
        let [a, b, ..] = finish(predicted, predicted);
        [a, b]
    }

    /// Corrects and reads.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn end(self, now: Now<'_>) -> [f32; 2] {
        let (a, b, q, k) = (self.a, self.b, now.q.as_chunks().0, now.k.as_chunks().0);
        let n = k.len();
        let (a, b, q) = (&mut a[..n], &mut b[..n], &q[..n]);
        let correction = [_mm256_set1_ps(now.correction[0]), _mm256_set1_ps(now.correction[1])];
        let mut read = zero();
        for c in (0..n - n % 2).step_by(2) {
            for h in 0..2 {
                let (q, k) = (load(&q[c + h]), load(&k[c + h]));
                let new_a = _mm256_fmadd_ps(correction[0], k, load(&a[c + h]));
                let new_b = _mm256_fmadd_ps(correction[1], k, load(&b[c + h]));
                read[0][h] = _mm256_fmadd_ps(new_a, q, read[0][h]);
                read[1][h] = _mm256_fmadd_ps(new_b, q, read[1][h]);
                store(&mut a[c + h], new_a);
                store(&mut b[c + h], new_b);
            }
        }
        let [a, b, ..] = finish(read, read);
        [a, b]
    }

    /// [`end`](Pair::end) of one position and [`begin`](Pair::begin) of the
    /// next: what was read, then what is predicted.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn advance<const COLUMNS: bool>(self, now: Now<'_>, next: Next<'_>) -> [f32; 4] {
        let (a, b) = (self.a, self.b);
        let (q, k, next_k) = (now.q.as_chunks().0, now.k.as_chunks().0, next.k.as_chunks().0);
        let n = k.len();
        let (a, b, q, next_k) = (&mut a[..n], &mut b[..n], &q[..n], &next_k[..n]);
        let correction = [_mm256_set1_ps(now.correction[0]), _mm256_set1_ps(now.correction[1])];
        let all = _mm256_set1_ps(next.decay);
        let decays = next.lanes::<COLUMNS>();
        let (mut read, mut predicted) = (zero(), zero());
        for c in (0..n - n % 2).step_by(2) {
            for h in 0..2 {
                let (q, k, next_k) = (load(&q[c + h]), load(&k[c + h]), load(&next_k[c + h]));
                let new_a = _mm256_fmadd_ps(correction[0], k, load(&a[c + h]));
                let new_b = _mm256_fmadd_ps(correction[1], k, load(&b[c + h]));
                read[0][h] = _mm256_fmadd_ps(new_a, q, read[0][h]);
                read[1][h] = _mm256_fmadd_ps(new_b, q, read[1][h]);
                let decay = if COLUMNS { load_half(&decays[c / 2], h) } else { all };
                let (new_a, new_b) = (_mm256_mul_ps(new_a, decay), _mm256_mul_ps(new_b, decay));
                predicted[0][h] = _mm256_fmadd_ps(new_a, next_k, predicted[0][h]);
                predicted[1][h] = _mm256_fmadd_ps(new_b, next_k, predicted[1][h]);
                store(&mut a[c + h], new_a);
                store(&mut b[c + h], new_b);
            }
        }
        finish(read, predicted)
    }
}

/// Half of a block of lanes.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn load_half(lanes: &[f32; LANES], half: usize) -> __m256 {
    load(&lanes.as_chunks().0[half])
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn zero() -> Sums {
    [[_mm256_setzero_ps(); 2]; 2]
}

/// The sums of two rows, then two others.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn finish(x: Sums, y: Sums) -> [f32; 4] {
    let sums =
        tree_sums([x[0][0], x[1][0], y[0][0], y[1][0]], [x[0][1], x[1][1], y[0][1], y[1][1]]);
    let mut out = [0.0; 4];
    // SAFETY: four elements are writable, and the store needs no alignment.
    unsafe { _mm_storeu_ps(out.as_mut_ptr(), sums) };
    out
}

/// As [`super::steps`], for pairs of rows of whole blocks of lanes.
///
/// While the sums of one pair are added up, the next pair's products go on.
#[target_feature(enable = "avx2,fma")]
pub(super) fn steps_of_pairs<const COLUMNS: bool>(
    state: &mut [f32],
    out: &mut Columns<'_>,
    run: Run<'_>,
) {
    let k_dim = run.k_dim;
    assert!(k_dim.is_multiple_of(LANES), "whole blocks of lanes");
    let n = run.gates.len();
    let n_pairs = state.len() / (2 * k_dim);
    let mut predicted = [[0.0; 2]; MOST_ROWS / 2];
    for (pair, predicted) in state.chunks_exact_mut(2 * k_dim).zip(&mut predicted) {
        *predicted = Pair::new(pair).begin::<COLUMNS>(run.next(0));
    }
    for t in 0..n {
        let (q, k) = (run.query(t), run.key(t));
        let v = run.v[t * run.v_stride..][..2 * n_pairs].as_chunks::<2>().0;
        let out = out.at(t)[..2 * n_pairs].as_chunks_mut::<2>().0;
        let beta = run.gates[t].beta;
        let next = (t + 1 < n).then(|| run.next(t + 1));
        for (i, pair) in state.chunks_exact_mut(2 * k_dim).enumerate() {
            let correction =
                [(v[i][0] - predicted[i][0]) * beta, (v[i][1] - predicted[i][1]) * beta];
            let now = Now { q, k, correction };
            let pair = Pair::new(pair);
            if let Some(next) = next {
                let sums = pair.advance::<COLUMNS>(now, next);
                out[i] = [sums[0], sums[1]];
                predicted[i] = [sums[2], sums[3]];
            } else {
                out[i] = pair.end(now);
            }
        }
    }
}
