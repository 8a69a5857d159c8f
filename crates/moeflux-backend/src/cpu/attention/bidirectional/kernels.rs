//! The inner loops. How many queries and columns they take at a time decides no bit: every sum has its own
//! accumulator.

#[cfg(target_arch = "x86_64")]
use super::avx512;
use super::views::{GROUP, Group, KEYS, Softmax};
use crate::cpu::Isa;
#[cfg(target_arch = "x86_64")]
use crate::cpu::isa::Level;
use crate::cpu::isa::for_every_isa;
use crate::cpu::kv_cache::Rows;
use crate::cpu::math::{LANES, exp};

/// Queries and columns of which plain kernels keep sums in registers.
const Q: usize = 4;
const COLS: usize = 16;

/// Column `c` of row `j` goes to `out[c][j]`; zeros where a block has fewer rows.
pub(super) fn turn(isa: Isa, rows: Rows<'_>, dim: usize, out: &mut [[f32; KEYS]]) {
    #[cfg(target_arch = "x86_64")]
    if let Level::Avx512 | Level::Amx = isa.level() {
        // SAFETY: holding this `Isa` proves that the machine has these parts of AVX-512.
        return unsafe { avx512::turn(rows, dim, out) };
    }
    turn_plain(isa, rows, dim, out);
}

for_every_isa! {
    fn turn_plain(rows: Rows<'_>, dim: usize, out: &mut [[f32; KEYS]]) {
        let n = rows.len();
        for first in (0..dim).step_by(COLS) {
            let out = &mut out[first..dim.min(first + COLS)];
            for j in 0..n {
                let row = &rows.row(j, dim)[first..];
                for (out, value) in out.iter_mut().zip(row) {
                    out[j] = *value;
                }
            }
            for out in out {
                out[n..].fill(0.0);
            }
        }
    }
}

/// `out[i][j] = sum of queries[c][i] * keys[c][j]`, by ascending `c`.
pub(super) fn score(
    isa: Isa,
    queries: &[[f32; GROUP]],
    keys: &[[f32; KEYS]],
    out: &mut [[f32; KEYS]; GROUP],
) {
    #[cfg(target_arch = "x86_64")]
    if let Level::Avx512 | Level::Amx = isa.level() {
        // SAFETY: holding this `Isa` proves that the machine has these parts of AVX-512.
        return unsafe { avx512::score(queries, keys, out) };
    }
    score_plain(isa, queries, keys, out);
}

for_every_isa! {
    fn score_plain(
        queries: &[[f32; GROUP]],
        keys: &[[f32; KEYS]],
        out: &mut [[f32; KEYS]; GROUP],
    ) {
        for (group, out) in out.as_chunks_mut::<Q>().0.iter_mut().enumerate() {
            for at in (0..KEYS).step_by(COLS) {
                let mut sums = [[0.0f32; COLS]; Q];
                for (query, key) in queries.iter().zip(keys) {
                    let query = &query.as_chunks::<Q>().0[group];
                    let key = &key[at..at + COLS];
                    for i in 0..Q {
                        for c in 0..COLS {
                            sums[i][c] = query[i].mul_add(key[c], sums[i][c]);
                        }
                    }
                }
                for (out, sums) in out.iter_mut().zip(&sums) {
                    out[at..at + COLS].copy_from_slice(sums);
                }
            }
        }
    }
}

/// Turns scores into weights, adds these to totals, and scales what was gathered before to the new
/// maxima. Weights of positions behind the block's are 0.
pub(super) fn weigh(isa: Isa, group: Group<'_>, scale: f32, softmax: Softmax<'_>) {
    #[cfg(target_arch = "x86_64")]
    if let Level::Avx512 | Level::Amx = isa.level() {
        // SAFETY: holding this `Isa` proves that the machine has these parts of AVX-512.
        return unsafe { avx512::weigh(group, scale, softmax) };
    }
    weigh_plain(isa, group, scale, softmax);
}

for_every_isa! {
    fn weigh_plain(group: Group<'_>, scale: f32, softmax: Softmax<'_>) {
        let Group { weights, n, sums, width } = group;
        let Softmax { maxima, totals } = softmax;
        let rows = weights.iter_mut().zip(maxima).zip(totals.iter_mut().zip(sums.chunks_mut(width)));
        for ((scores, max), (totals, sums)) in rows {
            scores[n..].fill(f32::NEG_INFINITY);
            let mut highest = [*max; LANES];
            for scores in scores.as_chunks_mut::<LANES>().0 {
                for i in 0..LANES {
                    scores[i] *= scale;
                    highest[i] = if scores[i] > highest[i] { scores[i] } else { highest[i] };
                }
            }
            let before = *max;
            for score in highest {
                *max = if score > *max { score } else { *max };
            }
            let factor = exp(before - *max);
            for total in &mut *totals {
                *total *= factor;
            }
            for scores in scores.as_chunks_mut::<LANES>().0 {
                for i in 0..LANES {
                    scores[i] = exp(scores[i] - *max);
                    totals[i] += scores[i];
                }
            }
            for sum in sums {
                *sum *= factor;
            }
        }
    }
}

/// `sums[i] += sum of weights[i][j] * values[j]`, by ascending `j`.
pub(super) fn mix(isa: Isa, group: Group<'_>, values: &[f32]) {
    #[cfg(target_arch = "x86_64")]
    if let Level::Avx512 | Level::Amx = isa.level() {
        // SAFETY: holding this `Isa` proves that the machine has these parts of AVX-512.
        return unsafe { avx512::mix(group, values) };
    }
    mix_plain(isa, group, values);
}

for_every_isa! {
    fn mix_plain(group: Group<'_>, values: &[f32]) {
        let Group { weights, n, sums, width } = group;
        let groups = weights.as_chunks::<Q>().0.iter().zip(sums.chunks_mut(Q * width));
        for (weights, sums) in groups {
            for at in (0..width).step_by(COLS) {
                let mut acc = [[0.0f32; COLS]; Q];
                for (acc, sums) in acc.iter_mut().zip(sums.chunks(width)) {
                    acc.copy_from_slice(&sums[at..at + COLS]);
                }
                for (j, value) in values.chunks(width).take(n).enumerate() {
                    let value = &value[at..at + COLS];
                    for i in 0..Q {
                        for c in 0..COLS {
                            acc[i][c] = weights[i][j].mul_add(value[c], acc[i][c]);
                        }
                    }
                }
                for (acc, sums) in acc.iter().zip(sums.chunks_mut(width)) {
                    sums[at..at + COLS].copy_from_slice(acc);
                }
            }
        }
    }
}
