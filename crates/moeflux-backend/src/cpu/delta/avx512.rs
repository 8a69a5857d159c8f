//! The recurrence for thirty-two vector registers: sixteen rows of a state are
//! the lanes of a vector.
//!
//! A run begins by turning rows into columns and ends by turning them back. In
//! between no sum is taken apart: a partial sum of sixteen rows is a register,
//! and queries and keys are read as single numbers that go to all lanes.

use std::arch::x86_64::*;

use super::Run;
use super::run::Next;
use crate::cpu::columns::Columns as Outputs;
use crate::cpu::math::LANES;
use crate::cpu::vector::{Line, load, prefetch, store, transpose};

/// Rows of a state that are the lanes of a vector.
pub(super) const ROWS: usize = 16;

/// Positions that values are fetched ahead.
const AHEAD: usize = 1;

/// Lanes of a block that are summed at a time: every fourth one, so that what is
/// left of them is one of the last four terms of the tree.
const QUARTER: usize = LANES / 4;

/// Every fourth column of a block of lanes of `G` times sixteen rows. Those of
/// all blocks follow each other in the order in which they are used.
type Columns<const G: usize> = [[Line; G]; QUARTER];

/// One vector for each sixteen rows.
type Rows<const G: usize> = [__m512; G];

/// As [`super::steps`], for a multiple of sixteen rows of whole blocks of lanes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn steps<const COLUMNS: bool>(
    state: &mut [f32],
    out: &mut Outputs<'_>,
    run: Run<'_>,
    scratch: &mut Vec<Line>,
) {
    let k_dim = run.k_dim;
    assert!(k_dim.is_multiple_of(LANES), "whole blocks of lanes");
    assert!(state.len().is_multiple_of(ROWS * k_dim), "whole vectors of rows");
    scratch.resize(state.len() / ROWS, Line::default());
    let n_paired = state.len() / (2 * ROWS * k_dim);
    let (pairs, single) = scratch.split_at_mut(2 * n_paired * k_dim);
    let (paired_state, single_state) = state.split_at_mut(2 * n_paired * ROWS * k_dim);
    steps_of::<2, COLUMNS>(paired_state, 0, out, run, pairs);
    if !single.is_empty() {
        steps_of::<1, COLUMNS>(single_state, 2 * n_paired * ROWS, out, run, single);
    }
}

/// [`steps`] for a multiple of `G` times sixteen rows, the `first` and those after it. While
/// the sums of some are added up, the products of the next go on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn steps_of<const G: usize, const COLUMNS: bool>(
    state: &mut [f32],
    first: usize,
    out: &mut Outputs<'_>,
    run: Run<'_>,
    turned: &mut [Line],
) {
    let k_dim = run.k_dim;
    for (rows, turned) in
        state.chunks_exact(ROWS * G * k_dim).zip(turned.chunks_exact_mut(G * k_dim))
    {
        turn::<G>(rows, columns(turned), k_dim);
    }
    let n = run.gates.len();
    let n_vectors = state.len() / (ROWS * k_dim);
    let mut predicted = [[_mm512_setzero_ps(); G]; super::MOST_ROWS / ROWS];
    for (turned, predicted) in turned.chunks_exact_mut(G * k_dim).zip(&mut predicted) {
        *predicted = begin::<G, COLUMNS>(columns(turned), run.next(0));
    }
    for t in 0..n {
        let (q, k) = (run.query(t), run.key(t));
        let next = (t + 1 < n).then(|| run.next(t + 1));
        let beta = _mm512_set1_ps(run.gates[t].beta);
        if let Some(v) = run.v.get((t + AHEAD) * run.v_stride + first..) {
            for v in v.as_chunks::<ROWS>().0.iter().take(n_vectors) {
                prefetch(v);
            }
        }
        let v = run.v[t * run.v_stride + first..].as_chunks::<ROWS>().0.as_chunks::<G>().0;
        let out = out.at(t)[first..].as_chunks_mut::<ROWS>().0.as_chunks_mut::<G>().0;
        let all = turned.chunks_exact_mut(G * k_dim).zip(&mut predicted);
        for ((turned, predicted), (v, out)) in all.zip(v.iter().zip(out)) {
            let mut correction = [_mm512_setzero_ps(); G];
            for g in 0..G {
                let error = _mm512_sub_ps(load(&v[g]), predicted[g]);
                correction[g] = _mm512_mul_ps(error, beta);
            }
            let now = Now { q, k, correction };
            let read;
            if let Some(next) = next {
                (read, *predicted) = advance::<G, COLUMNS>(columns(turned), now, next);
            } else {
                read = end(columns(turned), now);
            }
            for g in 0..G {
                store(&mut out[g], read[g]);
            }
        }
    }
    for (rows, turned) in
        state.chunks_exact_mut(ROWS * G * k_dim).zip(turned.chunks_exact_mut(G * k_dim))
    {
        turn_back::<G>(columns(turned), rows, k_dim);
    }
}

/// What ends a position.
#[derive(Clone, Copy)]
struct Now<'a, const G: usize> {
    q: &'a [f32],
    k: &'a [f32],
    correction: Rows<G>,
}

fn columns<const G: usize>(turned: &mut [Line]) -> &mut [Columns<G>] {
    turned.as_chunks_mut().0.as_chunks_mut().0
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn turn<const G: usize>(rows: &[f32], columns: &mut [Columns<G>], k_dim: usize) {
    for (g, rows) in rows.chunks_exact(ROWS * k_dim).enumerate() {
        for c in 0..k_dim / LANES {
            let mut block = [_mm512_setzero_ps(); ROWS];
            for (i, block) in block.iter_mut().enumerate() {
                *block = load(&rows[i * k_dim..][..k_dim].as_chunks().0[c]);
            }
            for (i, turned) in transpose(block).into_iter().enumerate() {
                let columns = &mut columns[i % QUARTER * (k_dim / LANES) + c];
                store(&mut columns[i / QUARTER][g].0, turned);
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn turn_back<const G: usize>(columns: &[Columns<G>], rows: &mut [f32], k_dim: usize) {
    for (g, rows) in rows.chunks_exact_mut(ROWS * k_dim).enumerate() {
        for c in 0..k_dim / LANES {
            let mut block = [_mm512_setzero_ps(); LANES];
            for (i, block) in block.iter_mut().enumerate() {
                let columns = &columns[i % QUARTER * (k_dim / LANES) + c];
                *block = load(&columns[i / QUARTER][g].0);
            }
            for (i, row) in transpose(block).into_iter().enumerate() {
                store(&mut rows[i * k_dim..][..k_dim].as_chunks_mut().0[c], row);
            }
        }
    }
}

/// Adds four partial sums, those of every fourth lane, as the tree does.
#[inline]
#[target_feature(enable = "avx512f")]
fn add_quarter(sums: [__m512; QUARTER]) -> __m512 {
    _mm512_add_ps(_mm512_add_ps(sums[0], sums[2]), _mm512_add_ps(sums[1], sums[3]))
}

/// The sums of all lanes.
#[inline]
#[target_feature(enable = "avx512f")]
fn add_quarters<const G: usize>(quarters: [[__m512; QUARTER]; G]) -> Rows<G> {
    let mut sums = [_mm512_setzero_ps(); G];
    for (sum, quarters) in sums.iter_mut().zip(quarters) {
        *sum = add_quarter(quarters);
    }
    sums
}

/// Decays and predicts.
#[inline]
#[target_feature(enable = "avx512f")]
fn begin<const G: usize, const COLUMNS: bool>(
    columns: &mut [Columns<G>],
    next: Next<'_>,
) -> Rows<G> {
    let (all, next_k) = (_mm512_set1_ps(next.decay), next.k.as_chunks::<LANES>().0);
    let decays = next.lanes::<COLUMNS>();
    let mut quarters = [[_mm512_setzero_ps(); QUARTER]; G];
    for (part, columns) in columns.chunks_exact_mut(next_k.len()).enumerate() {
        let mut predicted = [[_mm512_setzero_ps(); QUARTER]; G];
        for (c, (columns, next_k)) in columns.iter_mut().zip(next_k).enumerate() {
            for l in 0..QUARTER {
                let i = part % QUARTER + QUARTER * l;
                let decay = if COLUMNS { _mm512_set1_ps(decays[c][i]) } else { all };
                let next_k = _mm512_set1_ps(next_k[i]);
                for g in 0..G {
                    let state = _mm512_mul_ps(load(&columns[l][g].0), decay);
                    predicted[g][l] = _mm512_fmadd_ps(state, next_k, predicted[g][l]);
                    store(&mut columns[l][g].0, state);
                }
            }
        }
        for g in 0..G {
            quarters[g][part % QUARTER] = add_quarter(predicted[g]);
        }
    }
    add_quarters(quarters)
}

/// Corrects and reads.
#[inline]
#[target_feature(enable = "avx512f")]
fn end<const G: usize>(columns: &mut [Columns<G>], now: Now<'_, G>) -> Rows<G> {
    let (q, k) = (now.q.as_chunks::<LANES>().0, now.k.as_chunks::<LANES>().0);
    let mut quarters = [[_mm512_setzero_ps(); QUARTER]; G];
    for (part, columns) in columns.chunks_exact_mut(k.len()).enumerate() {
        let mut read = [[_mm512_setzero_ps(); QUARTER]; G];
        for (columns, (q, k)) in columns.iter_mut().zip(q.iter().zip(k)) {
            for l in 0..QUARTER {
                let i = part % QUARTER + QUARTER * l;
                let (q, k) = (_mm512_set1_ps(q[i]), _mm512_set1_ps(k[i]));
                for g in 0..G {
                    let state = load(&columns[l][g].0);
                    let state = _mm512_fmadd_ps(now.correction[g], k, state);
                    read[g][l] = _mm512_fmadd_ps(state, q, read[g][l]);
                    store(&mut columns[l][g].0, state);
                }
            }
        }
        for g in 0..G {
            quarters[g][part % QUARTER] = add_quarter(read[g]);
        }
    }
    add_quarters(quarters)
}

/// [`end`] of one position and [`begin`] of the next: what was read, then what is
/// predicted.
#[inline]
#[target_feature(enable = "avx512f")]
fn advance<const G: usize, const COLUMNS: bool>(
    columns: &mut [Columns<G>],
    now: Now<'_, G>,
    next: Next<'_>,
) -> (Rows<G>, Rows<G>) {
    let (q, k) = (now.q.as_chunks::<LANES>().0, now.k.as_chunks::<LANES>().0);
    let (all, next_k) = (_mm512_set1_ps(next.decay), next.k.as_chunks::<LANES>().0);
    let decays = next.lanes::<COLUMNS>();
    let mut read_quarters = [[_mm512_setzero_ps(); QUARTER]; G];
    let mut predicted_quarters = [[_mm512_setzero_ps(); QUARTER]; G];
    for (part, columns) in columns.chunks_exact_mut(k.len()).enumerate() {
        let mut read = [[_mm512_setzero_ps(); QUARTER]; G];
        let mut predicted = [[_mm512_setzero_ps(); QUARTER]; G];
        let keys = q.iter().zip(k).zip(next_k);
        for (c, (columns, ((q, k), next_k))) in columns.iter_mut().zip(keys).enumerate() {
            for l in 0..QUARTER {
                let i = part % QUARTER + QUARTER * l;
                let decay = if COLUMNS { _mm512_set1_ps(decays[c][i]) } else { all };
                let (q, k) = (_mm512_set1_ps(q[i]), _mm512_set1_ps(k[i]));
                let next_k = _mm512_set1_ps(next_k[i]);
                for g in 0..G {
                    let state = load(&columns[l][g].0);
                    let state = _mm512_fmadd_ps(now.correction[g], k, state);
                    read[g][l] = _mm512_fmadd_ps(state, q, read[g][l]);
                    let state = _mm512_mul_ps(state, decay);
                    predicted[g][l] = _mm512_fmadd_ps(state, next_k, predicted[g][l]);
                    store(&mut columns[l][g].0, state);
                }
            }
        }
        for g in 0..G {
            read_quarters[g][part % QUARTER] = add_quarter(read[g]);
            predicted_quarters[g][part % QUARTER] = add_quarter(predicted[g]);
        }
    }
    (add_quarters(read_quarters), add_quarters(predicted_quarters))
}
