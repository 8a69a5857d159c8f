//! The integer product with AMX, for many rows of activations; few are left to
//! AVX-512.
//!
//! Tiles give the exact dots of sixteen rows of the matrix with sixteen of the
//! activations; vectors finish them by the contract, with the activations as
//! lanes. A block of columns of a panel of rows is unpacked into the first
//! cache, and multiplies all activations of a pass.

mod columns;
mod finish;
mod input;
mod order;
mod tiles;

use std::cell::Cell;
use std::ops::Range;

use self::finish::{add_dots, load_all, store_all, totals};
pub(super) use self::input::prepack_all;
pub(in crate::cpu) use self::tiles::Tiles;
use self::tiles::{ROWS, Sums};
use super::avx512::panel::params_of_rows;
use super::avx512::vector::store_floats;
use super::avx512::{self, for_format};
use super::lane_params::{LaneParams, TileParams};
use super::prepacked::Input;
use super::product::IntegerProduct;
use super::rows::OutPart;
use crate::cpu::prefetcher::Prefetcher;
use crate::cpu::vector::Line;

/// Rows of the matrix whose columns are unpacked together.
pub(super) const PANEL_ROWS: usize = 64;
/// Columns that are unpacked together.
const BLOCK_COLS: usize = 256;
/// Activations of one pass, which the second cache holds.
const PASS_BYTES: usize = 1 << 20;

/// Sums of a tile of rows with one of activations.
type Acc = [Line; ROWS];

/// What a call needs besides its arguments.
#[derive(Default)]
struct Scratch {
    /// Unpacked weights of a block: row tiles, then tiles by column.
    weights: Vec<Line>,
    params: LaneParams,
    /// (x tiles, row tiles)
    acc: Vec<Acc>,
    dots: Dots,
}

/// The sums of a group, limb by limb.
struct Dots([Sums; 2]);

impl Default for Dots {
    fn default() -> Dots {
        Dots([Sums::ZERO; 2])
    }
}

thread_local! {
    static SCRATCH: Cell<Scratch> = Cell::default();
}

/// # Safety
/// This process may use AMX.
#[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
pub(super) unsafe fn integer_rows(
    product: IntegerProduct<'_>,
    rows: Range<usize>,
    mut out: OutPart<'_>,
) {
    let Some(input) = product.prepacked else {
        return avx512::integer_rows(product, rows, out);
    };
    // SAFETY: the caller grants AMX, and nothing below makes other tiles.
    let mut tiles = unsafe { Tiles::new(input.depth()) };
    let mut scratch = SCRATCH.take();
    scratch.weights.resize(PANEL_ROWS * BLOCK_COLS / size_of::<Line>(), Line::ZERO);
    let n = input.n_tiles();
    let per_pass = pass_tiles(&product);
    for first in (0..n).step_by(per_pass) {
        let x_tiles = first..n.min(first + per_pass);
        for row in rows.clone().step_by(PANEL_ROWS) {
            let panel_rows = row..rows.end.min(row + PANEL_ROWS);
            let is_last = panel_rows.end == rows.end && x_tiles.end == n;
            let panel = Panel {
                product: &product,
                input,
                rows: panel_rows,
                x_tiles: x_tiles.clone(),
                is_last,
            };
            if product.x.n_limbs() == 1 {
                panel.run::<1>(&mut tiles, &mut scratch, &mut out);
            } else {
                panel.run::<2>(&mut tiles, &mut scratch, &mut out);
            }
        }
    }
    SCRATCH.set(scratch);
}

/// Tiles of activations of one pass.
fn pass_tiles(product: &IntegerProduct<'_>) -> usize {
    (PASS_BYTES / (product.weight.cols * product.x.n_limbs() * input::X_ROWS)).max(1)
}

/// Some rows of the matrix times some tiles of the activations.
struct Panel<'a> {
    product: &'a IntegerProduct<'a>,
    input: Input<'a>,
    rows: Range<usize>,
    x_tiles: Range<usize>,
    /// Whether no other follows in this task.
    is_last: bool,
}

impl Panel<'_> {
    #[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
    fn run<const LIMBS: usize>(
        &self,
        tiles: &mut Tiles,
        scratch: &mut Scratch,
        out: &mut OutPart<'_>,
    ) {
        let Scratch { weights, params, acc, dots } = scratch;
        let n_row_tiles = self.rows.len().div_ceil(ROWS);
        let cols = self.product.weight.cols;
        let params = params_of_rows(params, self.product, self.rows.clone());
        acc.clear();
        acc.resize(self.x_tiles.len() * n_row_tiles, [Line::ZERO; ROWS]);
        let n_products = cols.div_ceil(self.input.depth()) * acc.len();
        let mut prefetcher = self.product.prefetcher(&self.rows, PANEL_ROWS, self.is_last);
        prefetcher.divide(n_products);
        for col in (0..cols).step_by(BLOCK_COLS) {
            let cols = col..cols.min(col + BLOCK_COLS);
            let weights = as_bytes(weights);
            let tile_bytes = cols.len() * ROWS;
            self.unpack(cols.clone(), tile_bytes, weights);
            let is_last = cols.end == self.product.weight.cols;
            for (t, acc) in self.x_tiles.clone().zip(acc.chunks_exact_mut(n_row_tiles)) {
                if is_last {
                    let first = t * input::X_ROWS;
                    for i in first..self.product.x_rows.len().min(first + input::X_ROWS) {
                        out.prefetch(i, self.rows.clone());
                    }
                }
                self.add::<LIMBS>(
                    tiles,
                    (weights, params),
                    (t, &cols),
                    acc,
                    (dots, &mut prefetcher),
                );
                if is_last {
                    self.finish(t, params, acc, out);
                }
            }
        }
    }

    /// Unpacks some columns, `tile_bytes` for sixteen rows.
    #[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
    fn unpack(&self, cols: Range<usize>, tile_bytes: usize, weights: &mut [u8]) {
        let rows = self.rows.clone().step_by(ROWS);
        for (row, out) in rows.zip(weights.chunks_exact_mut(tile_bytes)) {
            let rows = row..self.rows.end.min(row + ROWS);
            let cols = cols.clone();
            for_format!(
                self.product.integers,
                columns::unpack_tiles,
                (self.product, rows, cols, out)
            );
        }
    }

    /// Adds the products over some columns with tile `t` of the activations.
    ///
    /// Storing a tile waits for everything before it, so the next product is
    /// on its way while vectors finish the last one.
    #[inline]
    #[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
    fn add<const LIMBS: usize>(
        &self,
        tiles: &mut Tiles,
        (weights, params): (&[u8], TileParams<'_>),
        (t, cols): (usize, &Range<usize>),
        all: &mut [Acc],
        (Dots(dots), prefetcher): (&mut Dots, &mut Prefetcher<'_>),
    ) {
        let group_size = self.product.integers.group_size;
        let groups = cols.start / group_size..cols.end / group_size;
        let s = &self.input.s(t)[groups.clone()];
        let x = self.input.q(t, cols.start, LIMBS);
        let (bytes, steps) = (tiles.bytes(), group_size / tiles.depth());
        let mut multiply = |tiles: &mut Tiles, i: usize, g: usize| {
            tiles.clear();
            for step in 0..steps {
                let w = (i * s.len() + g) * steps + step;
                let x_at = (g * steps + step) * LIMBS * bytes;
                tiles.multiply::<LIMBS>(&weights[w * bytes..], &x[x_at..]);
                prefetcher.prefetch();
            }
        };
        multiply(tiles, 0, 0);
        for i in 0..all.len() {
            let scales = &params.scales(i)[groups.clone()];
            let mut acc = load_all(&all[i]);
            for g in 0..s.len() {
                tiles.store::<LIMBS>(dots);
                if g + 1 < s.len() {
                    multiply(tiles, i, g + 1);
                } else if i + 1 < all.len() {
                    multiply(tiles, i + 1, 0);
                }
                acc = add_dots::<LIMBS>(acc, dots, &s[g], &scales[g]);
            }
            store_all(acc, &mut all[i]);
        }
    }

    /// Writes the outputs of tile `t` of the activations.
    #[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
    fn finish(&self, t: usize, params: TileParams<'_>, acc: &[Acc], out: &mut OutPart<'_>) {
        let first = t * input::X_ROWS;
        let n = input::X_ROWS.min(self.product.x_rows.len() - first);
        let mut outputs = [[0.0; PANEL_ROWS]; input::X_ROWS];
        for (i, acc) in acc.iter().enumerate() {
            totals(acc, params.biases(i), self.input.st(t), |x_row, totals| {
                store_floats(&mut outputs[x_row].as_chunks_mut::<ROWS>().0[i], totals);
            });
        }
        for (x_row, outputs) in outputs[..n].iter().enumerate() {
            out.put(first + x_row, self.rows.start, &outputs[..self.rows.len()]);
        }
    }
}

fn as_bytes(lines: &mut [Line]) -> &mut [u8] {
    // SAFETY: lanes are floats without gaps.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), size_of_val(lines)) }
}
