//! Mamba-2's recurrence over positions of one head, some columns of its state at a time.
//!
//! A column of the state belongs to one element of the head and sees nothing of the others, so
//! that columns are lanes of vectors and a sum over the rows of a state is taken apart nowhere.

use super::columns::Columns;
use super::isa::for_every_isa;
use super::math::{LANES, exp, softplus};

/// Positions whose gates are computed together, at most.
pub(super) const MOST_POSITIONS: usize = 128;

/// Partial sums of what is read of a column: row of the state mod 4.
const SUMS: usize = 4;

/// How much of a head's state stays, and how much of an input joins it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gates {
    pub(super) decay: f32,
    pub(super) delta: f32,
}

/// Columns of consecutive rows of a buffer, `stride` apart.
#[derive(Clone, Copy)]
pub(super) struct Strided<'a> {
    pub(super) values: &'a [f32],
    pub(super) stride: usize,
    /// Columns.
    pub(super) len: usize,
}

/// Positions of one head.
#[derive(Clone, Copy)]
pub(super) struct Run<'a> {
    /// The inputs, whose columns are those of the state.
    pub(super) x: Strided<'a>,
    /// How inputs enter, an element for each row of the state.
    pub(super) b: Strided<'a>,
    /// How the state is read.
    pub(super) c: Strided<'a>,
    /// One a position.
    pub(super) gates: &'a [Gates],
    /// How much of an input is added to its output.
    pub(super) skip: f32,
}

/// One position of one head.
#[derive(Clone, Copy)]
struct Now<'a> {
    b: &'a [f32],
    c: &'a [f32],
    decay: f32,
    /// Columns of the whole state.
    n_columns: usize,
}

impl<'a> Strided<'a> {
    #[inline(always)]
    fn at(self, position: usize) -> &'a [f32] {
        &self.values[position * self.stride..][..self.len]
    }
}

for_every_isa! {
    /// The gates of one head at some positions, of `dt` with its bias.
    pub(super) fn gates(out: &mut [Gates], a_log: f32, dt: &[f32]) {
        let rate = -exp(a_log);
        for (out, dt) in out.iter_mut().zip(dt) {
            let delta = softplus(*dt);
            *out = Gates { decay: exp(rate * delta), delta };
        }
    }
}

for_every_isa! {
    /// Updates a state of `(b.len, x.len)` and reads it at every position.
    pub(super) fn steps(state: &mut [f32], out: &mut Columns<'_>, run: Run<'_>) {
        let n_columns = run.x.len;
        let n_whole = n_columns - n_columns % LANES;
        for first in (0..n_whole).step_by(LANES) {
            columns::<LANES>(state, first, out, run);
        }
        for first in n_whole..n_columns {
            columns::<1>(state, first, out, run);
        }
    }
}

/// Some columns at all positions.
#[inline(always)]
fn columns<const N: usize>(state: &mut [f32], first: usize, out: &mut Columns<'_>, run: Run<'_>) {
    let Run { x, b, c, gates, skip } = run;
    for (t, Gates { decay, delta }) in gates.iter().enumerate() {
        let now = Now { b: b.at(t), c: c.at(t), decay: *decay, n_columns: x.len };
        let x = x.at(t)[first..].first_chunk::<N>().expect("columns of a head");
        let mut input = [0.0; N];
        for i in 0..N {
            input[i] = delta * x[i];
        }
        let read = step(state, first, &input, now);
        let out = &mut out.at(t)[first..first + N];
        for i in 0..N {
            out[i] = skip.mul_add(x[i], read[i]);
        }
    }
}

// The sums have names because compilers keep an array of them in memory.

/// The definition: decay, add what enters, read.
#[inline(always)]
fn step<const N: usize>(
    state: &mut [f32],
    first: usize,
    input: &[f32; N],
    now: Now<'_>,
) -> [f32; N] {
    let Now { b, c, decay, n_columns } = now;
    let (mut sum0, mut sum1) = ([0.0; N], [0.0; N]);
    let (mut sum2, mut sum3) = ([0.0; N], [0.0; N]);
    let (b, last_b) = b.as_chunks::<SUMS>();
    let (c, last_c) = c.as_chunks::<SUMS>();
    let mut fours = state.chunks_exact_mut(SUMS * n_columns);
    for ((rows, b), c) in fours.by_ref().zip(b).zip(c) {
        let (rows01, rows23) = rows.split_at_mut(2 * n_columns);
        let (row0, row1) = rows01.split_at_mut(n_columns);
        let (row2, row3) = rows23.split_at_mut(n_columns);
        update(&mut row0[first..], [b[0], c[0]], decay, input, &mut sum0);
        update(&mut row1[first..], [b[1], c[1]], decay, input, &mut sum1);
        update(&mut row2[first..], [b[2], c[2]], decay, input, &mut sum2);
        update(&mut row3[first..], [b[3], c[3]], decay, input, &mut sum3);
    }
    let rows = fours.into_remainder().chunks_exact_mut(n_columns);
    let sums = [&mut sum0, &mut sum1, &mut sum2];
    for (((row, b), c), sum) in rows.zip(last_b).zip(last_c).zip(sums) {
        update(&mut row[first..], [*b, *c], decay, input, sum);
    }
    let mut read = [0.0; N];
    for i in 0..N {
        read[i] = (sum0[i] + sum1[i]) + (sum2[i] + sum3[i]);
    }
    read
}

/// Some columns of one row of the state.
#[inline(always)]
fn update<const N: usize>(
    row: &mut [f32],
    [b, c]: [f32; 2],
    decay: f32,
    input: &[f32; N],
    sum: &mut [f32; N],
) {
    let row = row.first_chunk_mut::<N>().expect("columns of a row");
    for i in 0..N {
        row[i] = b.mul_add(input[i], row[i] * decay);
        sum[i] = row[i].mul_add(c, sum[i]);
    }
}

#[cfg(test)]
mod tests {
    use moeflux_core::SplitMix64;

    use super::*;
    use crate::cpu::{Isa, SharedMut};

    /// Columns of a row that belong to others.
    const OTHERS: usize = 3;

    fn numbers(seed: u64, n: usize) -> Vec<f32> {
        SplitMix64::new(seed).floats(n)
    }

    /// The formula, element by element.
    fn expected(state: &mut [f32], run: Run<'_>) -> Vec<f32> {
        let mut out = Vec::new();
        for (t, gates) in run.gates.iter().enumerate() {
            for (p, x) in run.x.at(t).iter().enumerate() {
                let mut sums = [0.0f32; SUMS];
                for (n, (b, c)) in run.b.at(t).iter().zip(run.c.at(t)).enumerate() {
                    let element = &mut state[n * run.x.len + p];
                    *element = b.mul_add(gates.delta * x, *element * gates.decay);
                    sums[n % SUMS] = element.mul_add(*c, sums[n % SUMS]);
                }
                out.push(run.skip.mul_add(*x, (sums[0] + sums[1]) + (sums[2] + sums[3])));
            }
        }
        out
    }

    #[track_caller]
    fn check(head_dim: usize, state_size: usize, n: usize) {
        let widths = [head_dim, state_size, state_size].map(|width| width + OTHERS);
        let inputs: Vec<Vec<f32>> =
            (1..).zip(widths).map(|(seed, width)| numbers(seed, n * width)).collect();
        let strided =
            |i: usize| Strided { values: &inputs[i], stride: widths[i], len: widths[i] - OTHERS };
        let gates: Vec<Gates> = numbers(4, n)
            .iter()
            .map(|value| Gates { decay: value.abs(), delta: 0.3 * value + 0.5 })
            .collect();
        let run = Run { x: strided(0), b: strided(1), c: strided(2), gates: &gates, skip: 0.7 };
        let mut want = numbers(5, state_size * head_dim);
        let want_out = expected(&mut want, run);
        for isa in Isa::available() {
            let mut state = numbers(5, state_size * head_dim);
            let mut out = vec![0.0; n * head_dim];
            // SAFETY: no other code uses the outputs.
            let mut to = unsafe { Columns::new(SharedMut::new(&mut out), 0..head_dim, head_dim) };
            steps(isa, &mut state, &mut to, run);
            let bits =
                |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&state), bits(&want), "{isa:?}: {state_size} x {head_dim}, {n}");
            assert_eq!(bits(&out), bits(&want_out), "{isa:?}: {state_size} x {head_dim}, {n}");
        }
    }

    #[test]
    fn blocks_of_columns_have_the_bits_of_single_ones() {
        for n in [1, 2, 33] {
            for [head_dim, state_size] in
                [[1, 1], [16, 3], [64, 128], [5, 6], [33, 21], [48, 16], [80, 7]]
            {
                check(head_dim, state_size, n);
            }
        }
    }
}
