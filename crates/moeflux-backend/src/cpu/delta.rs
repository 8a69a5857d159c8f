//! The gated delta rule, one value head at a time.

use super::isa::for_every_isa;
use super::math::{LANES, dot, tree_sum};

/// Added to the squared length before its root is taken; the reference fixes it.
const L2_EPS: f32 = 1e-6;

/// State rows worked on together, to hide the latency of their sums.
const ROWS: usize = 4;

for_every_isa! {
    /// `out = x * factor / sqrt(sum(x^2) + eps)`.
    pub(super) fn l2_normalise(out: &mut [f32], x: &[f32], factor: f32) {
        let inverse = 1.0 / (dot(x, x) + L2_EPS).sqrt();
        for (out, x) in out.iter_mut().zip(x) {
            *out = x * inverse * factor;
        }
    }
}

/// One position of one value head.
pub(super) struct Step<'a> {
    pub(super) out: &'a mut [f32],
    pub(super) q: &'a [f32],
    pub(super) k: &'a [f32],
    pub(super) v: &'a [f32],
    pub(super) decay: f32,
    pub(super) beta: f32,
}

for_every_isa! {
    /// Updates a head's state, `(v_dim, k_dim)`, and reads it.
    pub(super) fn step(state: &mut [f32], step: Step<'_>) {
        let Step { out, q, k, v, decay, beta } = step;
        let k_dim = k.len();
        let n_blocks = out.len() / ROWS;
        let (state_blocks, state_tail) = state.split_at_mut(n_blocks * ROWS * k_dim);
        for (b, rows) in state_blocks.chunks_exact_mut(ROWS * k_dim).enumerate() {
            let read = update::<ROWS>(rows, q, k, &v[b * ROWS..(b + 1) * ROWS], decay, beta);
            out[b * ROWS..(b + 1) * ROWS].copy_from_slice(&read);
        }
        for (i, row) in state_tail.chunks_exact_mut(k_dim).enumerate() {
            let at = n_blocks * ROWS + i;
            let [read] = update::<1>(row, q, k, &v[at..=at], decay, beta);
            out[at] = read;
        }
    }
}

/// `N` rows of the state: decay, predict, correct, read.
#[inline(always)]
fn update<const N: usize>(
    rows: &mut [f32],
    q: &[f32],
    k: &[f32],
    v: &[f32],
    decay: f32,
    beta: f32,
) -> [f32; N] {
    let k_dim = k.len();
    let tail = k_dim - k_dim % LANES;
    let mut predicted = [[0.0; LANES]; N];
    for at in (0..tail).step_by(LANES) {
        for r in 0..N {
            let row = &mut rows[r * k_dim + at..][..LANES];
            let k = &k[at..at + LANES];
            for i in 0..LANES {
                row[i] *= decay;
                predicted[r][i] = row[i].mul_add(k[i], predicted[r][i]);
            }
        }
    }
    for r in 0..N {
        for (i, at) in (tail..k_dim).enumerate() {
            let it = &mut rows[r * k_dim + at];
            *it *= decay;
            predicted[r][i] = it.mul_add(k[at], predicted[r][i]);
        }
    }
    let mut correction = [0.0; N];
    for r in 0..N {
        correction[r] = (v[r] - tree_sum(predicted[r])) * beta;
    }
    let mut read = [[0.0; LANES]; N];
    for at in (0..tail).step_by(LANES) {
        for r in 0..N {
            let row = &mut rows[r * k_dim + at..][..LANES];
            let (k, q) = (&k[at..at + LANES], &q[at..at + LANES]);
            for i in 0..LANES {
                row[i] = correction[r].mul_add(k[i], row[i]);
                read[r][i] = row[i].mul_add(q[i], read[r][i]);
            }
        }
    }
    for r in 0..N {
        for (i, at) in (tail..k_dim).enumerate() {
            let it = &mut rows[r * k_dim + at];
            *it = correction[r].mul_add(k[at], *it);
            read[r][i] = it.mul_add(q[at], read[r][i]);
        }
    }
    read.map(tree_sum)
}
