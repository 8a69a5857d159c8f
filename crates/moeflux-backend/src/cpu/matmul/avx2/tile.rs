//! Many rows of activations: sixteen rows of the matrix are unpacked once to
//! 16-bit integers, transposed so that each 32-bit lane holds two columns of
//! its row, and multiplied with two columns of every row of activations at a
//! time.

use std::arch::x86_64::*;
use std::ops::Range;

use super::dots::add_products;
use super::order::Scratch;
use super::params::{GROUPS, ParamTile, Place};
use super::unpack::unpack_row;
use super::unpacked::{Pair, UnpackedRows};
use super::vector::{load_16, load_integers, store_floats, store_integers, transpose};
use crate::cpu::matmul::integers::width;
use crate::cpu::matmul::product::IntegerProduct;
use crate::cpu::matmul::rows::OutPart;

/// Rows of the matrix that are the lanes of one vector.
const LANES: usize = 8;
/// Rows of the matrix that are multiplied together, in two vectors.
const ROWS: usize = 2 * LANES;
/// Columns that are unpacked together: sixteen rows of them take half of the
/// first cache. A multiple of every group size.
const COLS: usize = 512;
/// Rows of the activations whose accumulators are kept together.
const X_ROWS: usize = 64;

/// The accumulators of sixteen outputs.
#[derive(Clone, Copy)]
struct Sums {
    acc: [__m256; 2],
    off: [__m256; 2],
}

/// The parameters of a piece: of each group, sixteen rows.
struct Params {
    scale: [[__m256; 2]; COLS / 16],
    bias: [[__m256; 2]; COLS / 16],
}

/// A piece of one row of the activations.
#[derive(Clone, Copy)]
struct Input<'a> {
    /// Two columns each.
    pairs: &'a [i32],
    s: &'a [f32],
    st: &'a [f32],
}

/// The outputs of `rows` for all rows of the activations.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn integer_rows<const CODES: usize, const GROUP: usize, const VNNI: bool>(
    product: IntegerProduct<'_>,
    rows: Range<usize>,
    out: &mut OutPart<'_>,
) {
    let (n, cols) = (product.x_rows.len(), product.weight.cols);
    let mut scratch = Scratch::take();
    let memory = &mut scratch.tile;
    memory.pairs.resize(COLS / 2, [[0; LANES]; 2]);
    memory.unpacked.resize(ROWS * COLS, 0);
    let zero = Sums { acc: [_mm256_setzero_ps(); 2], off: [_mm256_setzero_ps(); 2] };
    let mut sums = [zero; X_ROWS];
    for first in (0..n).step_by(X_ROWS) {
        let n_now = X_ROWS.min(n - first);
        for row in rows.clone().step_by(ROWS) {
            let block = row..rows.end.min(row + ROWS);
            sums[..n_now].fill(zero);
            for col in (0..cols).step_by(COLS) {
                let piece = col..cols.min(col + COLS);
                memory.load::<CODES>(&product, block.clone(), piece.clone());
                let groups = piece.start / GROUP..piece.end / GROUP;
                let params = Params::load(&product, block.clone(), groups);
                let pairs = &memory.pairs[..piece.len() / 2];
                let input = |i| Input::new(&product, first + i, piece.clone());
                multiply_all::<GROUP, VNNI>(pairs, &params, input, &mut sums[..n_now]);
            }
            for (i, sums) in sums[..n_now].iter().enumerate() {
                let mut total = [[0.0; LANES]; 2];
                for (half, out) in total.iter_mut().enumerate() {
                    store_floats(out, _mm256_add_ps(sums.acc[half], sums.off[half]));
                }
                out.put(first + i, row, &total.as_flattened()[..block.len()]);
            }
        }
    }
    scratch.keep();
}

impl UnpackedRows {
    /// Some columns of at most sixteen rows; absent ones keep what was there.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn load<const CODES: usize>(
        &mut self,
        product: &IntegerProduct<'_>,
        rows: Range<usize>,
        cols: Range<usize>,
    ) {
        let packed_bytes = cols.start * width(CODES) / 8..cols.end * width(CODES) / 8;
        for (row, out) in rows.zip(self.unpacked.chunks_exact_mut(COLS)) {
            let packed = &product.weight_rows(row..row + 1)[packed_bytes.clone()];
            unpack_row(CODES, packed, &mut out[..cols.len()]);
        }
        for (half, rows) in self.unpacked.chunks_exact(LANES * COLS).enumerate() {
            let pairs = self.pairs.as_chunks_mut::<LANES>().0;
            for (i, pairs) in pairs[..cols.len() / 16].iter_mut().enumerate() {
                let mut tile = [_mm256_setzero_ps(); LANES];
                for (r, it) in tile.iter_mut().enumerate() {
                    let wide = _mm256_cvtepu8_epi16(load_16(&rows[r * COLS + 16 * i..]));
                    *it = _mm256_castsi256_ps(wide);
                }
                for (out, it) in pairs.iter_mut().zip(transpose(tile)) {
                    store_integers(&mut out[half], _mm256_castps_si256(it));
                }
            }
        }
    }
}

impl Params {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn load(product: &IntegerProduct<'_>, rows: Range<usize>, groups: Range<usize>) -> Params {
        let zero = [[_mm256_setzero_ps(); 2]; COLS / 16];
        let mut out = Params { scale: zero, bias: zero };
        let n_groups = product.n_groups();
        let mut tile = ParamTile::zero();
        for half in 0..2 {
            // Lanes of absent rows repeat one that is there.
            let start = (rows.start + half * LANES).min(rows.end - 1);
            let rows = start..rows.end.min(start + LANES);
            for first in (0..groups.len()).step_by(GROUPS) {
                let place = Place { rows: rows.clone(), group: groups.start + first, n_groups };
                tile.load(&product.weight, product.integers.params, &place);
                for g in 0..GROUPS.min(groups.len() - first) {
                    out.scale[first + g][half] = tile.scale[g];
                    out.bias[first + g][half] = tile.bias[g];
                }
            }
        }
        out
    }
}

impl<'a> Input<'a> {
    #[inline]
    fn new(product: &IntegerProduct<'a>, i: usize, cols: Range<usize>) -> Input<'a> {
        let (x, row) = (product.x, product.x_rows.at(i));
        let groups = cols.start / x.group_size()..cols.end / x.group_size();
        Input {
            pairs: &x.pairs(row)[cols.start / 2..cols.end / 2],
            s: &x.s(row)[groups.clone()],
            st: &x.st(row)[groups],
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn multiply_all<'a, const GROUP: usize, const VNNI: bool>(
    pairs: &[Pair],
    params: &Params,
    input: impl Fn(usize) -> Input<'a>,
    sums: &mut [Sums],
) {
    let (fours, rest) = sums.as_chunks_mut::<4>();
    for (i, sums) in fours.iter_mut().enumerate() {
        let x = [input(4 * i), input(4 * i + 1), input(4 * i + 2), input(4 * i + 3)];
        multiply::<GROUP, VNNI, 4>(pairs, params, x, sums);
    }
    let first = 4 * fours.len();
    let (twos, rest) = rest.as_chunks_mut::<2>();
    for sums in twos.iter_mut() {
        multiply::<GROUP, VNNI, 2>(pairs, params, [input(first), input(first + 1)], sums);
    }
    for sums in rest {
        let x = [input(first + 2 * twos.len())];
        multiply::<GROUP, VNNI, 1>(pairs, params, x, std::array::from_mut(sums));
    }
}

/// Adds the products of a piece with `N` rows of the activations.
#[target_feature(enable = "avx2,fma")]
fn multiply<const GROUP: usize, const VNNI: bool, const N: usize>(
    pairs: &[Pair],
    params: &Params,
    x: [Input<'_>; N],
    sums: &mut [Sums; N],
) {
    let half_group = GROUP / 2;
    for (g, pairs) in pairs.chunks_exact(half_group).enumerate() {
        let mut columns: [&[i32]; N] = [&[]; N];
        for i in 0..N {
            columns[i] = &x[i].pairs[g * half_group..][..half_group];
        }
        let mut dots = [[_mm256_setzero_si256(); 2]; N];
        for p in 0..half_group {
            let w = [load_integers(&pairs[p][0]), load_integers(&pairs[p][1])];
            for i in 0..N {
                let x = _mm256_set1_epi32(columns[i][p]);
                dots[i][0] = add_products::<VNNI>(dots[i][0], w[0], x);
                dots[i][1] = add_products::<VNNI>(dots[i][1], w[1], x);
            }
        }
        for i in 0..N {
            let (s, st) = (_mm256_set1_ps(x[i].s[g]), _mm256_set1_ps(x[i].st[g]));
            for half in 0..2 {
                let scale = _mm256_mul_ps(params.scale[g][half], s);
                let dots = _mm256_cvtepi32_ps(dots[i][half]);
                sums[i].acc[half] = _mm256_fmadd_ps(dots, scale, sums[i].acc[half]);
                sums[i].off[half] = _mm256_fmadd_ps(params.bias[g][half], st, sums[i].off[half]);
            }
        }
    }
}
