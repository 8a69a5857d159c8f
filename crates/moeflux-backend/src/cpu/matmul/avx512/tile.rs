//! Several rows of activations: a block of columns of a panel of rows is
//! unpacked into the second cache once, as lines of four columns of sixteen rows,
//! and multiplies all activations of a pass, a few rows at a time, whose sums
//! stay in registers.

use std::arch::x86_64::*;
use std::cell::Cell;
use std::hint::black_box;
use std::ops::Range;

use super::columns::unpack_tile;
use super::panel::params_of_rows;
use super::vector::{ROWS, load_64, load_floats, store_first, store_floats};
use crate::cpu::matmul::lane_params::{LaneParams, TileParams};
use crate::cpu::matmul::product::IntegerProduct;
use crate::cpu::matmul::rows::OutPart;
use crate::cpu::prefetcher::Prefetcher;
use crate::cpu::vector::Line;

/// Tiles of sixteen rows of the matrix that are multiplied together, at most.
const TILES: usize = 3;
/// Rows of the matrix that are unpacked together, at most.
pub(in crate::cpu::matmul) const PANEL_ROWS: usize = TILES * ROWS;
/// Columns that are unpacked together: a panel takes 192 KiB of the second cache, which
/// brings three lines for twelve products in time.
const BLOCK_COLS: usize = 4096;
/// Columns of a line.
const LINE_COLS: usize = 4;
/// Limbs of rows of activations that are multiplied together: with three tiles, their
/// sums and those of outputs take at most 24 of 32 registers.
const X_LIMBS: usize = 4;
/// Activations of one pass, for which a panel is unpacked once: all threads read
/// them from the third cache.
const PASS_BYTES: usize = 2 << 20;

/// The two sums of sixteen outputs.
#[derive(Clone, Copy)]
struct Sums {
    acc: Line,
    off: Line,
}

/// What a call needs besides its arguments.
#[derive(Default)]
struct Scratch {
    /// (tiles, columns / 4): four bytes of each of sixteen rows.
    weights: Vec<Line>,
    params: LaneParams,
    /// (rows of activations, tiles)
    sums: Vec<Sums>,
}

thread_local! {
    static SCRATCH: Cell<Scratch> = Cell::default();
}

/// The outputs of `rows` for all rows of the activations.
#[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
pub(super) fn integer_rows<const CODES: usize, const GROUP: usize>(
    product: IntegerProduct<'_>,
    rows: Range<usize>,
    out: &mut OutPart<'_>,
) {
    let mut scratch = SCRATCH.take();
    scratch.weights.resize(PANEL_ROWS * BLOCK_COLS / size_of::<Line>(), Line::ZERO);
    let n = product.x_rows.len();
    let per_pass = PASS_BYTES / (product.weight.cols * product.x.n_limbs());
    let per_pass = per_pass.max(1).next_multiple_of(X_LIMBS);
    for first in (0..n).step_by(per_pass) {
        let x_rows = first..n.min(first + per_pass);
        let mut left = rows.clone();
        while !left.is_empty() {
            let row = left.start;
            left.start = rows.end.min(row + panel_tiles(left.len()) * ROWS);
            let is_last = left.is_empty() && x_rows.end == n;
            let panel =
                Panel { product: &product, rows: row..left.start, x_rows: x_rows.clone(), is_last };
            panel.run::<CODES, GROUP>(&mut scratch, out);
        }
    }
    SCRATCH.set(scratch);
}

/// Tiles of the next panel of `n_rows` remaining rows.
fn panel_tiles(n_rows: usize) -> usize {
    // Four are better two and two.
    if n_rows.div_ceil(ROWS) == 4 { 2 } else { n_rows.div_ceil(ROWS).min(TILES) }
}

/// Some rows of the matrix times some rows of the activations.
struct Panel<'a> {
    product: &'a IntegerProduct<'a>,
    rows: Range<usize>,
    x_rows: Range<usize>,
    /// Whether no other follows in this task.
    is_last: bool,
}

impl Panel<'_> {
    #[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
    fn run<const CODES: usize, const GROUP: usize>(
        &self,
        scratch: &mut Scratch,
        out: &mut OutPart<'_>,
    ) {
        let Scratch { weights, params, sums } = scratch;
        let n_tiles = self.rows.len().div_ceil(ROWS);
        let cols = self.product.weight.cols;
        let params = params_of_rows(params, self.product, self.rows.clone());
        let n_sums = self.x_rows.len() * n_tiles;
        if sums.len() < n_sums {
            sums.resize(n_sums, Sums { acc: Line::ZERO, off: Line::ZERO });
        }
        let most = X_LIMBS / self.product.x.n_limbs();
        let n_times = self.x_rows.len().div_ceil(most) * self.product.n_groups();
        let mut prefetcher = self.product.prefetcher(&self.rows, PANEL_ROWS, self.is_last);
        prefetcher.divide(n_times);
        for col in (0..cols).step_by(BLOCK_COLS) {
            let cols = col..cols.min(col + BLOCK_COLS);
            let n_lines = cols.len() / LINE_COLS;
            for (row, out) in self.rows.clone().step_by(ROWS).zip(weights.chunks_exact_mut(n_lines))
            {
                let rows = row..self.rows.end.min(row + ROWS);
                unpack_tile::<CODES>(self.product, rows, cols.clone(), out);
            }
            let block = Block { panel: self, weights: &weights[..n_tiles * n_lines], params, cols };
            let mut left = self.x_rows.clone();
            let mut sums = &mut sums[..n_sums];
            while !left.is_empty() {
                // Four, two or one.
                let n = 1 << left.len().min(most).ilog2();
                let (now, rest) = sums.split_at_mut(n * n_tiles);
                block.add::<GROUP>(left.start..left.start + n, now, &mut prefetcher, out);
                (left.start, sums) = (left.start + n, rest);
            }
        }
    }
}

/// Some unpacked columns of a panel.
struct Block<'a> {
    panel: &'a Panel<'a>,
    weights: &'a [Line],
    params: TileParams<'a>,
    cols: Range<usize>,
}

impl Block<'_> {
    /// Adds the products with some rows of the activations, and writes the
    /// outputs if these columns are the last.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni,fma")]
    fn add<const GROUP: usize>(
        &self,
        x_rows: Range<usize>,
        sums: &mut [Sums],
        prefetcher: &mut Prefetcher<'_>,
        out: &mut OutPart<'_>,
    ) {
        match GROUP {
            16 => self.add_groups::<4>(x_rows, sums, prefetcher, out),
            32 => self.add_groups::<8>(x_rows, sums, prefetcher, out),
            64 => self.add_groups::<16>(x_rows, sums, prefetcher, out),
            _ => self.add_groups::<32>(x_rows, sums, prefetcher, out),
        }
    }

    /// [`add`](Block::add) for groups of `LINES` lines.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni,fma")]
    fn add_groups<const LINES: usize>(
        &self,
        x_rows: Range<usize>,
        sums: &mut [Sums],
        prefetcher: &mut Prefetcher<'_>,
        out: &mut OutPart<'_>,
    ) {
        let n_tiles = self.panel.rows.len().div_ceil(ROWS);
        // A dot is summed in several parts, so that about twelve sums are in flight.
        match (x_rows.len(), n_tiles, self.panel.product.x.n_limbs()) {
            (1, 1, 1) => self.multiply::<LINES, 1, 1, 1, 4>(x_rows, sums, prefetcher, out),
            (1, 2, 1) => self.multiply::<LINES, 1, 1, 2, 4>(x_rows, sums, prefetcher, out),
            (1, _, 1) => self.multiply::<LINES, 1, 1, 3, 4>(x_rows, sums, prefetcher, out),
            (2, 1, 1) => self.multiply::<LINES, 1, 2, 1, 4>(x_rows, sums, prefetcher, out),
            (2, 2, 1) => self.multiply::<LINES, 1, 2, 2, 2>(x_rows, sums, prefetcher, out),
            (2, _, 1) => self.multiply::<LINES, 1, 2, 3, 2>(x_rows, sums, prefetcher, out),
            (_, 1, 1) => self.multiply::<LINES, 1, 4, 1, 2>(x_rows, sums, prefetcher, out),
            (_, 2, 1) => self.multiply::<LINES, 1, 4, 2, 1>(x_rows, sums, prefetcher, out),
            (_, _, 1) => self.multiply::<LINES, 1, 4, 3, 1>(x_rows, sums, prefetcher, out),
            (1, 1, _) => self.multiply::<LINES, 2, 1, 1, 4>(x_rows, sums, prefetcher, out),
            (1, 2, _) => self.multiply::<LINES, 2, 1, 2, 2>(x_rows, sums, prefetcher, out),
            (1, _, _) => self.multiply::<LINES, 2, 1, 3, 2>(x_rows, sums, prefetcher, out),
            (_, 1, _) => self.multiply::<LINES, 2, 2, 1, 2>(x_rows, sums, prefetcher, out),
            (_, 2, _) => self.multiply::<LINES, 2, 2, 2, 1>(x_rows, sums, prefetcher, out),
            (_, _, _) => self.multiply::<LINES, 2, 2, 3, 1>(x_rows, sums, prefetcher, out),
        }
    }

    /// As [`add`](Block::add), `X` rows of `LIMBS` limbs with `N` tiles, each
    /// dot in `PARTS`.
    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni,fma")]
    fn multiply<
        const LINES: usize,
        const LIMBS: usize,
        const X: usize,
        const N: usize,
        const PARTS: usize,
    >(
        &self,
        x_rows: Range<usize>,
        sums: &mut [Sums],
        prefetcher: &mut Prefetcher<'_>,
        out: &mut OutPart<'_>,
    ) {
        let is_last = self.cols.end == self.panel.product.weight.cols;
        if is_last {
            x_rows.clone().for_each(|i| out.prefetch(i, self.panel.rows.clone()));
        }
        let first_group = self.cols.start / (LINES * LINE_COLS);
        let n_groups = self.cols.len() / (LINES * LINE_COLS);
        let mut x = [Input::<LIMBS>::NONE; X];
        for (x, i) in x.iter_mut().zip(x_rows.clone()) {
            *x = Input::new(self.panel.product, i, first_group);
        }
        let mut tiles = [Tile::<LINES>::NONE; N];
        for (t, tile) in tiles.iter_mut().enumerate() {
            *tile = Tile {
                lines: self.weights[t * n_groups * LINES..].as_chunks().0,
                scales: &self.params.scales(t)[first_group..],
                biases: &self.params.biases(t)[first_group..],
            };
        }
        let (sums, _) = sums.as_chunks_mut::<N>();
        let sums = &mut sums[..X];
        let off = offsets(sums, &tiles, &x, n_groups, first_group == 0);
        let mut acc = [[_mm512_setzero_ps(); N]; X];
        if first_group > 0 {
            for i in 0..X {
                for t in 0..N {
                    acc[i][t] = load_floats(&sums[i][t].acc.0);
                }
            }
        }
        for g in 0..n_groups {
            let dots = dots::<LINES, LIMBS, X, N, PARTS>(&tiles, &x, g);
            prefetcher.prefetch();
            for t in 0..N {
                let scale = load_floats(&tiles[t].scales[g].0);
                for i in 0..X {
                    let scale = _mm512_mul_ps(scale, _mm512_set1_ps(x[i].s[g]));
                    acc[i][t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[i][t]), scale, acc[i][t]);
                }
            }
        }
        for (i, row) in x_rows.enumerate() {
            if is_last {
                let factor = _mm512_set1_ps(out.factor());
                let out = out.row(row, self.panel.rows.clone());
                for (t, out) in out.chunks_mut(ROWS).enumerate().take(N) {
                    let total = _mm512_add_ps(acc[i][t], off[i][t]);
                    store_first(out, _mm512_mul_ps(total, factor));
                }
                continue;
            }
            for t in 0..N {
                store_floats(&mut sums[i][t].acc.0, acc[i][t]);
                store_floats(&mut sums[i][t].off.0, off[i][t]);
            }
        }
    }
}

/// One row of the activations, from some group on.
#[derive(Clone, Copy)]
struct Input<'a, const LIMBS: usize> {
    q: [&'a [i8]; LIMBS],
    s: &'a [f32],
    st: &'a [f32],
}

impl<'a, const LIMBS: usize> Input<'a, LIMBS> {
    const NONE: Self = Input { q: [&[]; LIMBS], s: &[], st: &[] };

    #[inline(always)]
    fn new(product: &IntegerProduct<'a>, i: usize, group: usize) -> Self {
        let (x, row) = (product.x, product.x_rows.at(i));
        let mut q: [&[i8]; LIMBS] = [&[]; LIMBS];
        for (limb, q) in q.iter_mut().enumerate() {
            *q = &x.q(row, limb)[group * x.group_size()..];
        }
        Input { q, s: &x.s(row)[group..], st: &x.st(row)[group..] }
    }
}

/// Sixteen rows of the matrix, from some group on.
#[derive(Clone, Copy)]
struct Tile<'a, const LINES: usize> {
    lines: &'a [[Line; LINES]],
    scales: &'a [Line],
    biases: &'a [Line],
}

impl<const LINES: usize> Tile<'_, LINES> {
    const NONE: Self = Tile { lines: &[], scales: &[], biases: &[] };
}

/// What biases add to these groups, on top of `sums` unless these are the
/// first: separate sums, so that products have the registers.
#[inline]
#[target_feature(enable = "avx512f,fma")]
fn offsets<const LINES: usize, const LIMBS: usize, const X: usize, const N: usize>(
    sums: &[[Sums; N]],
    tiles: &[Tile<'_, LINES>; N],
    x: &[Input<'_, LIMBS>; X],
    n_groups: usize,
    are_first: bool,
) -> [[__m512; N]; X] {
    let mut off = [[_mm512_setzero_ps(); N]; X];
    if !are_first {
        for i in 0..X {
            for t in 0..N {
                off[i][t] = load_floats(&sums[i][t].off.0);
            }
        }
    }
    for g in 0..n_groups {
        for t in 0..N {
            let bias = load_floats(&tiles[t].biases[g].0);
            for i in 0..X {
                off[i][t] = _mm512_fmadd_ps(bias, _mm512_set1_ps(x[i].st[g]), off[i][t]);
            }
        }
    }
    off
}

/// Lines of a round of the innermost loop.
const UNROLLED: usize = 4;

/// The dots of the `g`-th group.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn dots<
    const LINES: usize,
    const LIMBS: usize,
    const X: usize,
    const N: usize,
    const PARTS: usize,
>(
    tiles: &[Tile<'_, LINES>; N],
    x: &[Input<'_, LIMBS>; X],
    g: usize,
) -> [[__m512i; N]; X] {
    let zero = _mm512_setzero_si512();
    let mut dots = [[[[zero; N]; LIMBS]; X]; PARTS];
    let mut lines = [&[Line::ZERO; LINES]; N];
    for (lines, tile) in lines.iter_mut().zip(tiles) {
        *lines = &tile.lines[g];
    }
    let mut fours = [[&[[0; LINE_COLS]; LINES]; LIMBS]; X];
    for (fours, x) in fours.iter_mut().zip(x) {
        for (fours, q) in fours.iter_mut().zip(x.q) {
            *fours = &q.as_chunks().0.as_chunks().0[g];
        }
    }
    // Compilers would put two rounds in a row, for which there are not enough registers.
    let n_rounds = black_box(LINES / UNROLLED).min(LINES / UNROLLED);
    for some in 0..n_rounds {
        for k in some * UNROLLED..(some + 1) * UNROLLED {
            let mut weights = [zero; N];
            for t in 0..N {
                weights[t] = load_64(bytemuck::cast_slice(&lines[t][k].0));
            }
            for i in 0..X {
                for limb in 0..LIMBS {
                    let four = i32::from_le_bytes(fours[i][limb][k].map(|it: i8| it as u8));
                    let four = _mm512_set1_epi32(four);
                    for t in 0..N {
                        let sum = &mut dots[k % PARTS][i][limb][t];
                        *sum = _mm512_dpbusd_epi32(*sum, weights[t], four);
                    }
                }
            }
        }
    }
    let mut out = [[zero; N]; X];
    for i in 0..X {
        for t in 0..N {
            let mut sums = [zero; LIMBS];
            for part in dots {
                for limb in 0..LIMBS {
                    sums[limb] = _mm512_add_epi32(sums[limb], part[i][limb][t]);
                }
            }
            let high = sums[0];
            out[i][t] = if LIMBS == 1 {
                high
            } else {
                _mm512_add_epi32(_mm512_slli_epi32::<8>(high), sums[LIMBS - 1])
            };
        }
    }
    out
}
