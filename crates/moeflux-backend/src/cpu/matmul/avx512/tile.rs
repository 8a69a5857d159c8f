//! Several rows of activations: sixteen rows of the matrix are unpacked once,
//! transposed so that each 32-bit lane holds four columns of its row, and
//! multiplied with four columns of every row of activations at a time.

use std::arch::x86_64::*;
use std::ops::Range;

use super::ROWS;
use super::params::{GROUPS, ParamTile, param_tile};
use super::transpose::transpose;
use super::unpack::{COLS, unpack, unpack_part};
use super::vector::store_floats;
use crate::cpu::matmul::IntegerProduct;
use crate::cpu::matmul::jobs::OutPart;

/// Rows of activations of one pass: their accumulators fill a third of the
/// first cache.
const X_ROWS: usize = 64;

/// Sixteen rows: vector `k` holds columns `4 k .. 4 k + 4` of every row.
type Tile = [__m512i; 16];

/// The outputs of `rows` for all rows of the activations.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2,fma,f16c")]
pub(super) fn integer_rows<const BITS: usize, const GROUP: usize>(
    product: IntegerProduct<'_>,
    rows: Range<usize>,
    out: &mut OutPart<'_>,
) {
    let n = product.x_rows.len();
    let mut sums = vec![Sums::zero(); n.min(X_ROWS)];
    for first in (0..n).step_by(X_ROWS) {
        let x_rows = first..n.min(first + X_ROWS);
        let inputs: Vec<_> = x_rows.clone().map(|i| Input::new(&product, i)).collect();
        for row in rows.clone().step_by(ROWS) {
            let block = row..rows.end.min(row + ROWS);
            sums.fill(Sums::zero());
            multiply::<BITS, GROUP>(&product, block.clone(), &inputs, &mut sums);
            for (i, it) in x_rows.clone().zip(&sums) {
                out.put(i, row, &it.total()[..block.len()]);
            }
        }
    }
}

/// One row of the activations.
#[derive(Clone, Copy)]
struct Input<'a> {
    high: &'a [i8],
    /// Empty where there is one digit.
    low: &'a [i8],
    s: &'a [f32],
    st: &'a [f32],
}

impl<'a> Input<'a> {
    fn new(product: &IntegerProduct<'a>, i: usize) -> Input<'a> {
        let (x, row) = (product.x, product.x_rows.at(i));
        let low: &[i8] = if x.n_digits() == 2 { x.q(row, 1) } else { &[] };
        Input { high: x.q(row, 0), low, s: x.s(row), st: x.st(row) }
    }
}

/// The accumulators of one row of activations, and the integer sum of the part
/// of a group that came first.
#[derive(Clone, Copy)]
struct Sums {
    acc: __m512,
    off: __m512,
    part: __m512i,
}

impl Sums {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn zero() -> Sums {
        let zero = _mm512_setzero_ps();
        Sums { acc: zero, off: zero, part: _mm512_setzero_si512() }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn total(&self) -> [f32; ROWS] {
        let mut out = [0.0; ROWS];
        store_floats(&mut out, _mm512_add_ps(self.acc, self.off));
        out
    }

    /// Ends a group whose dots are `d`.
    #[inline]
    #[target_feature(enable = "avx512f,fma")]
    fn end_group(&mut self, d: __m512i, scale: __m512, bias: __m512, s: f32, st: f32) {
        let scale = _mm512_mul_ps(scale, _mm512_set1_ps(s));
        self.acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(d), scale, self.acc);
        self.off = _mm512_fmadd_ps(bias, _mm512_set1_ps(st), self.off);
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2,fma,f16c")]
fn multiply<const BITS: usize, const GROUP: usize>(
    product: &IntegerProduct<'_>,
    rows: Range<usize>,
    inputs: &[Input<'_>],
    sums: &mut [Sums],
) {
    let mut params = param_tile(product, rows.clone(), 0);
    let mut params_from = 0;
    for col in (0..product.weight.cols).step_by(COLS) {
        let group = col / GROUP;
        if group >= params_from + GROUPS {
            params_from = group;
            params = param_tile(product, rows.clone(), group);
        }
        let tile = load_tile::<BITS>(product, rows.clone(), col);
        let param_idx = group - params_from;
        match GROUP {
            32 => {
                end_group::<0, 8>(&tile, &params, param_idx, inputs, group, col, sums);
                if col + 32 < product.weight.cols {
                    end_group::<8, 16>(&tile, &params, param_idx + 1, inputs, group + 1, col, sums);
                }
            }
            64 => end_group::<0, 16>(&tile, &params, param_idx, inputs, group, col, sums),
            _ if col % 128 == 0 => begin_group(&tile, inputs, col, sums),
            _ => end_group::<0, 16>(&tile, &params, param_idx, inputs, group, col, sums),
        }
    }
}

/// Columns `col..` of sixteen rows; rows beyond the last repeat it.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2")]
fn load_tile<const BITS: usize>(
    product: &IntegerProduct<'_>,
    rows: Range<usize>,
    col: usize,
) -> Tile {
    let row_bytes = product.weight.cols * BITS / 8;
    let packed = product.weight_rows(rows.clone());
    let n_bytes = COLS.min(product.weight.cols - col) * BITS / 8;
    let mut vectors = [_mm512_setzero_si512(); ROWS];
    for (r, it) in vectors.iter_mut().enumerate() {
        let start = r.min(rows.len() - 1) * row_bytes + col * BITS / 8;
        let bytes = &packed[start..start + n_bytes];
        *it = if n_bytes == 8 * BITS { unpack::<BITS>(bytes) } else { unpack_part::<BITS>(bytes) };
    }
    transpose(vectors)
}

/// The dots of vectors `FROM..TO` of the tile with one row of activations,
/// added to `start`.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn dots<const FROM: usize, const TO: usize>(
    tile: &Tile,
    x: &Input<'_>,
    col: usize,
    start: __m512i,
) -> __m512i {
    let zero = _mm512_setzero_si512();
    if x.low.is_empty() {
        return digit_dots::<FROM, TO>(tile, &x.high[col..], start);
    }
    let high = digit_dots::<FROM, TO>(tile, &x.high[col..], zero);
    let low = digit_dots::<FROM, TO>(tile, &x.low[col..], start);
    _mm512_add_epi32(_mm512_slli_epi32::<8>(high), low)
}

#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn digit_dots<const FROM: usize, const TO: usize>(
    tile: &Tile,
    x: &[i8],
    start: __m512i,
) -> __m512i {
    let (x, _) = x[..4 * TO].as_chunks::<4>();
    // Two chains: one would wait for itself.
    let mut chains = [start, _mm512_setzero_si512()];
    for k in FROM..TO {
        let x = _mm512_set1_epi32(i32::from_le_bytes(x[k].map(|it| it as u8)));
        chains[k % 2] = _mm512_dpbusd_epi32(chains[k % 2], tile[k], x);
    }
    _mm512_add_epi32(chains[0], chains[1])
}

/// The first half of a group of 128.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn begin_group(tile: &Tile, inputs: &[Input<'_>], col: usize, sums: &mut [Sums]) {
    for (x, sums) in inputs.iter().zip(sums) {
        sums.part = dots::<0, 16>(tile, x, col, _mm512_setzero_si512());
    }
}

/// The last columns of a group.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni,fma")]
fn end_group<const FROM: usize, const TO: usize>(
    tile: &Tile,
    params: &ParamTile,
    param_idx: usize,
    inputs: &[Input<'_>],
    group: usize,
    col: usize,
    sums: &mut [Sums],
) {
    let (scale, bias) = (params.scale[param_idx], params.bias[param_idx]);
    for (x, sums) in inputs.iter().zip(sums) {
        let d = dots::<FROM, TO>(tile, x, col, sums.part);
        sums.end_group(d, scale, bias, x.s[group], x.st[group]);
    }
}
