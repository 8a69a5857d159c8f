//! The integer product with AMX, for many rows of activations; few are left to
//! AVX-512.
//!
//! Tiles give the exact dots of sixteen rows of the matrix with sixteen of the
//! activations; vectors finish them by the contract, with the activations as
//! lanes. The tiles of one chunk of groups are multiplied before the previous
//! chunk is finished, so that the processor can overlap the two.

mod columns;
mod finish;
mod input;
mod tiles;

use std::cell::Cell;
use std::ops::Range;

use self::finish::{Accumulators, Params};
use self::input::{Input, X_ROWS};
pub(in crate::cpu) use self::tiles::Tiles;
use self::tiles::{ROW_TILES, ROWS, SumTiles, Sums, X_TILES};
use super::IntegerProduct;
use super::avx512::{self, for_format};
use super::jobs::OutPart;

/// From this many rows of activations on, a tile is worth its unused lanes.
const MIN_X_ROWS: usize = 8;
/// Rows of the matrix that are multiplied together.
const BLOCK_ROWS: usize = ROW_TILES * ROWS;
/// Groups whose tiles are multiplied before any of them is finished.
const CHUNK: usize = 2;
/// Activations of one pass, which the second cache holds beside the weights.
const PASS_BYTES: usize = 512 << 10;

/// The dots of a chunk.
type Chunk = [SumTiles; CHUNK];

/// What a call needs besides its arguments.
#[derive(Default)]
struct Scratch {
    input: Input,
    /// Unpacked weights of a block: row tiles, then tiles by column.
    weights: Vec<u8>,
    params: Params,
}

thread_local! {
    /// Kept from call to call: other tasks want the same activations.
    static SCRATCH: Cell<Scratch> = Cell::default();
}

/// # Safety
/// This process may use AMX.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2,fma,f16c")]
pub(super) unsafe fn integer_rows(
    product: IntegerProduct<'_>,
    rows: Range<usize>,
    mut out: OutPart<'_>,
) {
    let n = product.x_rows.len();
    if n < MIN_X_ROWS {
        return avx512::integer_rows(product, rows, out);
    }
    let depth = product.affine.group_size.min(64);
    // SAFETY: the caller grants AMX, and nothing below makes other tiles.
    let mut tiles = unsafe { Tiles::new(depth) };
    let mut scratch = SCRATCH.take();
    for first in (0..n).step_by(pass_rows(&product)) {
        let x_rows = first..n.min(first + pass_rows(&product));
        scratch.input.fill(&product, x_rows.clone());
        for row in rows.clone().step_by(BLOCK_ROWS) {
            let rows = row..rows.end.min(row + BLOCK_ROWS);
            let block = Block { product: &product, rows, x_rows: x_rows.clone() };
            block.run(&mut tiles, &mut scratch, &mut out);
        }
    }
    SCRATCH.set(scratch);
}

/// Rows of activations of one pass: whole blocks of tiles.
fn pass_rows(product: &IntegerProduct<'_>) -> usize {
    let row_bytes = product.weight.cols * product.x.n_digits();
    (PASS_BYTES / row_bytes).max(1).next_multiple_of(X_TILES * X_ROWS)
}

/// Some rows of the matrix times some of the activations.
struct Block<'a> {
    product: &'a IntegerProduct<'a>,
    rows: Range<usize>,
    x_rows: Range<usize>,
}

impl Block<'_> {
    #[target_feature(
        enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    fn run(&self, tiles: &mut Tiles, scratch: &mut Scratch, out: &mut OutPart<'_>) {
        let Scratch { input, weights, params } = scratch;
        params.fill(self.product, self.rows.clone());
        // One or two tiles of activations, or both digits of one.
        let n_tiles = self.x_rows.len().div_ceil(X_ROWS);
        let mut tile = 0;
        while tile < n_tiles {
            let part = Part { block: self, input, params, tile };
            match (self.product.x.n_digits(), n_tiles - tile) {
                (1, 1) => part.run::<1, 1>(tiles, weights, out),
                (1, _) => part.run::<2, 1>(tiles, weights, out),
                _ => part.run::<1, 2>(tiles, weights, out),
            }
            tile += if self.product.x.n_digits() == 1 { X_TILES } else { 1 };
        }
    }

    /// Unpacks the weights of a chunk.
    #[target_feature(
        enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    fn unpack(&self, groups: Range<usize>, weights: &mut [u8]) {
        let group_size = self.product.affine.group_size;
        let cols = groups.start * group_size..groups.end * group_size;
        let tile_bytes = weights.len() / ROW_TILES;
        for (i, weights) in weights.chunks_exact_mut(tile_bytes).enumerate() {
            let rows = self.tile_rows(i);
            if rows.is_empty() {
                return;
            }
            let out = &mut weights[cols.start * ROWS..cols.end * ROWS];
            let cols = cols.clone();
            for_format!(
                self.product.affine,
                columns::unpack_tiles,
                (self.product, rows, cols, out)
            );
        }
    }

    /// The rows of the matrix in one tile.
    fn tile_rows(&self, i: usize) -> Range<usize> {
        let first = self.rows.end.min(self.rows.start + i * ROWS);
        first..self.rows.end.min(first + ROWS)
    }
}

/// A block with the activations from one tile on.
struct Part<'a> {
    block: &'a Block<'a>,
    input: &'a Input,
    params: &'a Params,
    tile: usize,
}

impl Part<'_> {
    /// The outputs of `TILES` tiles of activations of `DIGITS` digits.
    #[target_feature(
        enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    fn run<const TILES: usize, const DIGITS: usize>(
        &self,
        tiles: &mut Tiles,
        weights: &mut Vec<u8>,
        out: &mut OutPart<'_>,
    ) {
        let Block { product, rows, x_rows } = self.block;
        let n_row_tiles = rows.len().div_ceil(ROWS);
        weights.resize(BLOCK_ROWS * product.weight.cols, 0);
        let n_groups = product.n_groups();
        let mut chunks = [[[[Sums::ZERO; X_TILES]; ROW_TILES]; CHUNK]; 2];
        let mut acc = Accumulators::<TILES>::zero();
        let chunk = |i: usize| i * CHUNK..n_groups.min((i + 1) * CHUNK);
        let n_chunks = n_groups.div_ceil(CHUNK);
        let s = std::array::from_fn(|t| self.input.s(self.tile + t));
        for i in 0..=n_chunks {
            if i < n_chunks {
                if self.tile == 0 {
                    self.block.unpack(chunk(i), weights);
                }
                self.multiply::<TILES, DIGITS>(tiles, weights, chunk(i), &mut chunks[i % 2]);
            }
            if i > 0 {
                let sums = &chunks[(i - 1) % 2];
                acc.add_dots::<DIGITS>(n_row_tiles, self.params, &s, chunk(i - 1), sums);
            }
        }
        let st = std::array::from_fn(|t| self.input.st(self.tile + t));
        let biases = acc.biases(n_row_tiles, self.params, &st);
        for (t, outputs) in acc.totals(biases).iter().enumerate() {
            let first = x_rows.start + (self.tile + t) * X_ROWS;
            for (i, outputs) in (first..x_rows.end).zip(outputs) {
                out.put(i, rows.start, &outputs[..rows.len()]);
            }
        }
    }

    /// The dots of some groups.
    #[inline]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    fn multiply<const TILES: usize, const DIGITS: usize>(
        &self,
        tiles: &mut Tiles,
        weights: &[u8],
        groups: Range<usize>,
        out: &mut Chunk,
    ) {
        let group_size = self.block.product.affine.group_size;
        let (w0, w1) = weights.split_at(weights.len() / ROW_TILES);
        let x = |i: usize, col| self.input.q(self.tile + i / DIGITS, i % DIGITS, col);
        for (g, out) in groups.zip(out) {
            tiles.clear();
            for col in (g * group_size..(g + 1) * group_size).step_by(tiles.depth()) {
                let w = [&w0[col * ROWS..], &w1[col * ROWS..]];
                if TILES * DIGITS == 1 {
                    tiles.multiply(w, [x(0, col)]);
                } else {
                    tiles.multiply(w, [x(0, col), x(1, col)]);
                }
            }
            if TILES * DIGITS == 1 { tiles.store::<1>(out) } else { tiles.store::<2>(out) }
        }
    }
}
