//! The gated delta rule, some rows of one value head's state at a time.
//!
//! A row of the state belongs to one value and sees nothing of the others, so
//! a block of rows stays in the first cache for all positions of a run. What
//! [`step`] says is the definition; [`steps`] goes over a block once a position
//! instead of twice, by ending one position and beginning the next in one pass.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod run;

pub(super) use self::run::{Gates, MOST_ROWS, Run};
use self::run::{Next, Now};
use super::Isa;
use super::columns::Columns;
#[cfg(target_arch = "x86_64")]
use super::isa::Level;
use super::isa::for_every_isa;
use super::math::{LANES, dot, exp, sigmoid, softplus, tree_sum};
#[cfg(target_arch = "x86_64")]
use super::vector::Line;

/// Added to the squared length before its root is taken; the reference fixes it.
const L2_EPS: f32 = 1e-6;

/// Positions that are worked on before the next block, at most.
pub(super) const MOST_POSITIONS: usize = 256;

/// How a head's state and the positions are divided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocks {
    /// Rows of the state that are worked on together.
    pub(super) rows: usize,
    /// Positions that are worked on before the next block.
    pub(super) positions: usize,
}

impl Blocks {
    /// Those of the kernel that [`steps`] chooses for a span of `n_positions`.
    pub(super) fn new(isa: Isa, n_positions: usize) -> Blocks {
        if turns_rows(isa, n_positions) {
            Blocks { rows: MOST_ROWS, positions: MOST_POSITIONS }
        } else {
            Blocks { rows: 16, positions: 32 }
        }
    }
}

/// Whether rows of a state become lanes, which costs as much as some positions.
fn turns_rows(isa: Isa, n_positions: usize) -> bool {
    /// From here on it pays.
    const POSITIONS: usize = 8;
    #[cfg(target_arch = "x86_64")]
    if matches!(isa.level(), Level::Avx512 | Level::Amx) {
        return n_positions >= POSITIONS;
    }
    let _ = (isa, n_positions, POSITIONS);
    false
}

/// A block of the state whose rows are lanes.
#[cfg(target_arch = "x86_64")]
type Turned = Vec<Line>;
#[cfg(not(target_arch = "x86_64"))]
type Turned = ();

/// Memory of one task.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub(super) turned: Turned,
    /// Normalised queries of a run, `(positions, k_dim)`.
    pub(super) q: Vec<f32>,
    /// Normalised keys of a run, `(positions, k_dim)`.
    pub(super) k: Vec<f32>,
    /// What the gates of a run are made of, one a position.
    pub(super) a: Vec<f32>,
    pub(super) b: Vec<f32>,
    /// Decays of the columns of a run, `(positions, k_dim)`.
    pub(super) decays: Vec<f32>,
    /// Of every position of a run.
    pub(super) gates: Vec<Gates>,
}

for_every_isa! {
    /// `out = x * factor / sqrt(sum(x^2) + eps)`.
    pub(super) fn l2_normalise(out: &mut [f32], x: &[f32], factor: f32) {
        let inverse = 1.0 / (dot(x, x) + L2_EPS).sqrt();
        for (out, x) in out.iter_mut().zip(x) {
            *out = x * inverse * factor;
        }
    }
}

for_every_isa! {
    /// The gates of one head at some positions, of `a` with its bias and of `b`.
    pub(super) fn gates(out: &mut [Gates], a_log: f32, a: &[f32], b: &[f32]) {
        let rate = -exp(a_log);
        for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
            *out = Gates { decay: exp(rate * softplus(*a)), beta: sigmoid(*b) };
        }
    }
}

for_every_isa! {
    /// Strengths alone, of heads whose columns decay.
    pub(super) fn strengths(out: &mut [Gates], b: &[f32]) {
        for (out, b) in out.iter_mut().zip(b) {
            *out = Gates { decay: 1.0, beta: sigmoid(*b) };
        }
    }
}

for_every_isa! {
    /// The decays of the columns of one head at a position.
    pub(super) fn column_decays(out: &mut [f32], a_log: f32, a: &[f32], dt_bias: &[f32]) {
        let rate = -exp(a_log);
        for ((out, a), bias) in out.iter_mut().zip(a).zip(dt_bias) {
            *out = exp(rate * softplus(a + bias));
        }
    }
}

for_every_isa! {
    /// The same where the logarithm of a decay is at least `bound`.
    pub(super) fn bounded_decays(
        out: &mut [f32],
        bound: f32,
        a_log: f32,
        a: &[f32],
        dt_bias: &[f32],
    ) {
        let rate = exp(a_log);
        for ((out, a), bias) in out.iter_mut().zip(a).zip(dt_bias) {
            *out = exp(bound * sigmoid(rate * (a + bias)));
        }
    }
}

/// Updates a block of at most [`MOST_ROWS`] rows of `k_dim` and reads it at every
/// position.
pub(super) fn steps(
    isa: Isa,
    state: &mut [f32],
    mut out: Columns<'_>,
    run: Run<'_>,
    turned: &mut Turned,
) {
    let k_dim = run.k_dim;
    let n_rows = state.len() / k_dim;
    let has_whole_lanes = k_dim.is_multiple_of(LANES);
    let n_turned =
        if has_whole_lanes && turns_rows(isa, run.gates.len()) { n_rows - n_rows % 16 } else { 0 };
    let (rows, state) = state.split_at_mut(n_turned * k_dim);
    if n_turned > 0 {
        turned_rows(isa, rows, &mut out, run, turned);
    }
    out.skip(n_turned);
    let (n_rows, run) = (n_rows - n_turned, run.skip_rows(n_turned));
    let n_paired = if has_whole_lanes { n_rows - n_rows % 2 } else { 0 };
    let (pairs, singles) = state.split_at_mut(n_paired * k_dim);
    if n_paired > 0 {
        pairs_of_rows(isa, pairs, &mut out, run);
    }
    for (i, row) in singles.chunks_exact_mut(k_dim).enumerate() {
        steps_of_row(isa, row, &mut out, run, n_paired + i);
    }
}

fn turned_rows(
    isa: Isa,
    state: &mut [f32],
    out: &mut Columns<'_>,
    run: Run<'_>,
    turned: &mut Turned,
) {
    #[cfg(target_arch = "x86_64")]
    if matches!(isa.level(), Level::Avx512 | Level::Amx) {
        return match run.decays {
            // SAFETY: holding this `Isa` proves that the machine has these parts of AVX-512.
            None => unsafe { avx512::steps::<false>(state, out, run, turned) },
            // SAFETY: as above.
            Some(_) => unsafe { avx512::steps::<true>(state, out, run, turned) },
        };
    }
    let _ = turned;
    pairs_of_rows(isa, state, out, run);
}

fn pairs_of_rows(isa: Isa, state: &mut [f32], out: &mut Columns<'_>, run: Run<'_>) {
    #[cfg(target_arch = "x86_64")]
    if isa.level() != Level::Scalar {
        return match run.decays {
            // SAFETY: holding this `Isa` proves that the machine has AVX2 and FMA.
            None => unsafe { avx2::steps_of_pairs::<false>(state, out, run) },
            // SAFETY: as above.
            Some(_) => unsafe { avx2::steps_of_pairs::<true>(state, out, run) },
        };
    }
    steps_of_pairs(isa, state, out, run);
}

for_every_isa! {
    /// One row of the block.
    fn steps_of_row(row: &mut [f32], out: &mut Columns<'_>, run: Run<'_>, i: usize) {
        for (t, gates) in run.gates.iter().enumerate() {
            let v = run.v[t * run.v_stride + i];
            out.at(t)[i] = step(row, run.query(t), run.next(t), v, gates.beta);
        }
    }
}

/// The definition: decay, predict, correct, read.
#[inline(always)]
fn step(row: &mut [f32], q: &[f32], next: Next<'_>, v: f32, beta: f32) -> f32 {
    let mut predicted = [0.0; LANES];
    for (i, (element, k)) in row.iter_mut().zip(next.k).enumerate() {
        *element *= next.decays.map_or(next.decay, |decays| decays[i]);
        predicted[i % LANES] = element.mul_add(*k, predicted[i % LANES]);
    }
    let correction = (v - tree_sum(predicted)) * beta;
    let mut read = [0.0; LANES];
    for (i, ((element, k), q)) in row.iter_mut().zip(next.k).zip(q).enumerate() {
        *element = correction.mul_add(*k, *element);
        read[i % LANES] = element.mul_add(*q, read[i % LANES]);
    }
    tree_sum(read)
}

for_every_isa! {
    /// Pairs of rows: while the sums of one pair are added up, the next pair's
    /// products go on.
    fn steps_of_pairs(state: &mut [f32], out: &mut Columns<'_>, run: Run<'_>) {
        match run.decays {
            None => all_pairs::<false>(state, out, run),
            Some(_) => all_pairs::<true>(state, out, run),
        }
    }
}

#[inline(always)]
fn all_pairs<const COLUMNS: bool>(state: &mut [f32], out: &mut Columns<'_>, run: Run<'_>) {
    let k_dim = run.k_dim;
    let n = run.gates.len();
    let mut predicted = [0.0; MOST_ROWS];
    for (pair, predicted) in state.chunks_exact_mut(2 * k_dim).zip(predicted.as_chunks_mut::<2>().0)
    {
        let (a, b) = pair.split_at_mut(k_dim);
        *predicted = begin::<COLUMNS>(a, b, run.next(0));
    }
    for t in 0..n {
        let (q, k, beta) = (run.query(t), run.key(t), run.gates[t].beta);
        let is_last = t + 1 == n;
        let next = run.next((t + 1).min(n - 1));
        let v = run.v[t * run.v_stride..].as_chunks::<2>().0;
        let out = out.at(t).as_chunks_mut::<2>().0;
        let pairs = state.chunks_exact_mut(2 * k_dim);
        let predicted = predicted.as_chunks_mut::<2>().0;
        for (pair, ((v, out), predicted)) in pairs.zip(v.iter().zip(out).zip(predicted)) {
            let (a, b) = pair.split_at_mut(k_dim);
            let correction = [(v[0] - predicted[0]) * beta, (v[1] - predicted[1]) * beta];
            let now = Now { q, k, correction };
            if is_last {
                *out = end(a, b, now);
            } else {
                (*out, *predicted) = advance::<COLUMNS>(a, b, now, next);
            }
        }
    }
}

type Lanes = [f32; LANES];

/// Keeps the loop before it from taking lanes apart, see `attention::kernels`.
#[inline(always)]
fn finish(lanes: Lanes) -> f32 {
    tree_sum(std::hint::black_box(lanes))
}

// The sums have names because compilers keep an array of them in memory.

/// Decays two rows and predicts.
#[inline(always)]
fn begin<const COLUMNS: bool>(a: &mut [f32], b: &mut [f32], next: Next<'_>) -> [f32; 2] {
    let (mut predicted_a, mut predicted_b) = ([0.0; LANES], [0.0; LANES]);
    let (a, b) = (a.as_chunks_mut::<LANES>().0, b.as_chunks_mut::<LANES>().0);
    let (k, decays) = (next.k.as_chunks::<LANES>().0, next.lanes::<COLUMNS>());
    for (c, ((a, b), k)) in a.iter_mut().zip(b).zip(k).enumerate() {
        for i in 0..LANES {
            let decay = if COLUMNS { decays[c][i] } else { next.decay };
            a[i] *= decay;
            b[i] *= decay;
            predicted_a[i] = a[i].mul_add(k[i], predicted_a[i]);
            predicted_b[i] = b[i].mul_add(k[i], predicted_b[i]);
        }
    }
    [finish(predicted_a), finish(predicted_b)]
}

/// Corrects and reads.
#[inline(always)]
fn end(a: &mut [f32], b: &mut [f32], Now { q, k, correction }: Now<'_>) -> [f32; 2] {
    let (mut read_a, mut read_b) = ([0.0; LANES], [0.0; LANES]);
    let (a, b) = (a.as_chunks_mut::<LANES>().0, b.as_chunks_mut::<LANES>().0);
    let keys = k.as_chunks::<LANES>().0.iter().zip(q.as_chunks::<LANES>().0);
    for ((a, b), (k, q)) in a.iter_mut().zip(b).zip(keys) {
        for i in 0..LANES {
            a[i] = correction[0].mul_add(k[i], a[i]);
            b[i] = correction[1].mul_add(k[i], b[i]);
            read_a[i] = a[i].mul_add(q[i], read_a[i]);
            read_b[i] = b[i].mul_add(q[i], read_b[i]);
        }
    }
    [finish(read_a), finish(read_b)]
}

/// [`end`] of one position and [`begin`] of the next.
#[inline(always)]
fn advance<const COLUMNS: bool>(
    a: &mut [f32],
    b: &mut [f32],
    now: Now<'_>,
    next: Next<'_>,
) -> ([f32; 2], [f32; 2]) {
    let Now { q, k, correction } = now;
    let decays = next.lanes::<COLUMNS>();
    let (mut read_a, mut read_b) = ([0.0; LANES], [0.0; LANES]);
    let (mut predicted_a, mut predicted_b) = ([0.0; LANES], [0.0; LANES]);
    let (a, b) = (a.as_chunks_mut::<LANES>().0, b.as_chunks_mut::<LANES>().0);
    let keys = k.as_chunks::<LANES>().0.iter().zip(q.as_chunks::<LANES>().0);
    let keys = keys.zip(next.k.as_chunks::<LANES>().0);
    for (c, ((a, b), ((k, q), next_k))) in a.iter_mut().zip(b).zip(keys).enumerate() {
        for i in 0..LANES {
            let decay = if COLUMNS { decays[c][i] } else { next.decay };
            let corrected_a = correction[0].mul_add(k[i], a[i]);
            let corrected_b = correction[1].mul_add(k[i], b[i]);
            read_a[i] = corrected_a.mul_add(q[i], read_a[i]);
            read_b[i] = corrected_b.mul_add(q[i], read_b[i]);
            a[i] = corrected_a * decay;
            b[i] = corrected_b * decay;
            predicted_a[i] = a[i].mul_add(next_k[i], predicted_a[i]);
            predicted_b[i] = b[i].mul_add(next_k[i], predicted_b[i]);
        }
    }
    ([finish(read_a), finish(read_b)], [finish(predicted_a), finish(predicted_b)])
}

#[cfg(test)]
mod tests {
    use moeflux_core::SplitMix64;

    use super::*;
    use crate::cpu::Isa;
    use crate::cpu::SharedMut;

    fn numbers(seed: u64, n: usize) -> Vec<f32> {
        SplitMix64::new(seed).floats(n)
    }

    #[track_caller]
    fn check(n_rows: usize, k_dim: usize, n: usize, columns_decay: bool) {
        let (q, k) = (numbers(1, n * k_dim), numbers(2, n * k_dim));
        let v = numbers(3, n * (n_rows + 3));
        let gates: Vec<Gates> = numbers(4, n)
            .iter()
            .map(|value| Gates { decay: value.abs(), beta: 0.3 * value + 0.5 })
            .collect();
        let decays = numbers(6, n * k_dim);
        let decays = columns_decay.then_some(&decays[..]);
        let run = Run { q: &q, k: &k, gates: &gates, decays, v: &v, v_stride: n_rows + 3, k_dim };
        let (mut want, mut want_out) = (numbers(5, n_rows * k_dim), vec![0.0; n * MOST_ROWS]);
        for t in 0..n {
            for (i, row) in want.chunks_exact_mut(k_dim).enumerate() {
                let v = v[t * (n_rows + 3) + i];
                want_out[t * MOST_ROWS + i] =
                    step(row, run.query(t), run.next(t), v, gates[t].beta);
            }
        }
        for isa in Isa::available() {
            let (mut state, mut out) = (numbers(5, n_rows * k_dim), vec![0.0; n * MOST_ROWS]);
            // SAFETY: no other code uses the outputs.
            let to = unsafe { Columns::new(SharedMut::new(&mut out), 0..n_rows, MOST_ROWS) };
            steps(isa, &mut state, to, run, &mut Turned::default());
            let bits =
                |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&state), bits(&want), "{isa:?}: state of {n_rows} x {k_dim}, {n}");
            assert_eq!(bits(&out), bits(&want_out), "{isa:?}: reads of {n_rows} x {k_dim}, {n}");
        }
    }

    #[test]
    fn blocks_and_runs_have_the_bits_of_single_steps() {
        let shapes = [(1, 16), (2, 16), (16, 128), (7, 48), (16, 20), (3, 1), (64, 32), (51, 48)];
        for n in [1, 2, 3, 8, 33] {
            for (n_rows, k_dim) in shapes {
                check(n_rows, k_dim, n, false);
                check(n_rows, k_dim, n, true);
            }
        }
    }
}
