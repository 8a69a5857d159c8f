//! The integer product with AVX2, and with AVX-VNNI.
//!
//! Few rows of activations: `stream.rs` reads the matrix in the order of
//! memory. Many: eight rows of the matrix are unpacked to bytes piece by piece,
//! and each piece multiplies all rows of the activations. Both end with eight
//! rows of the matrix as the lanes of a vector.

mod dots;
mod order;
mod params;
mod stream;
mod unpack;
mod vector;

use std::arch::x86_64::*;
use std::ops::Range;

use self::vector::{load_16, load_32, load_floats, store_floats, transpose};
use super::IntegerProduct;
use super::floats::decode_floats;
use super::jobs::OutPart;

pub(super) use unpack::unpack_row;

/// Rows of the matrix that are the lanes of a vector.
const ROWS: usize = 8;
/// Columns that are unpacked together: eight rows of them take half of
/// the first cache. A multiple of every group size.
const COLS: usize = 2048;
/// Groups of a piece, where they are smallest.
const GROUPS: usize = COLS / 32;
/// Rows of the activations whose accumulators are kept together.
const X_ROWS: usize = 64;

/// Calls `$kernel::<BITS, GROUP, $vnni>` for the format of the matrix.
macro_rules! for_format {
    ($affine:expr, $vnni:ident, $kernel:path, $args:tt) => {
        for_format!(@bits $affine, $vnni, $kernel, $args, 2 3 4 5 6 8)
    };
    (@bits $affine:expr, $vnni:ident, $kernel:path, $args:tt, $($bits:literal)*) => {
        match ($affine.bits, $affine.group_size) {
            $(
                ($bits, 32) => for_format!(@call $kernel, $bits, 32, $vnni, $args),
                ($bits, 64) => for_format!(@call $kernel, $bits, 64, $vnni, $args),
                ($bits, 128) => for_format!(@call $kernel, $bits, 128, $vnni, $args),
            )*
            _ => unreachable!("supported formats only"),
        }
    };
    (@call $kernel:path, $bits:literal, $group:literal, $vnni:ident, ($($arg:expr),*)) => {{
        use $kernel as kernel;
        kernel::<$bits, $group, $vnni>($($arg),*)
    }};
}

/// `VNNI`: the machine has AVX-VNNI too.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn integer_rows<const VNNI: bool>(
    product: IntegerProduct<'_>,
    rows: Range<usize>,
    mut out: OutPart<'_>,
) {
    let n = product.x_rows.len();
    if n <= stream::X_ROWS {
        for_format!(product.affine, VNNI, stream::integer_rows, (product, rows, &mut out));
        return;
    }
    let mut piece = Piece::default();
    let mut sums = [Sums::zero(); X_ROWS];
    for row in rows.clone().step_by(ROWS) {
        let block = row..rows.end.min(row + ROWS);
        for first in (0..n).step_by(X_ROWS) {
            let x_rows = first..n.min(first + X_ROWS);
            sums[..x_rows.len()].fill(Sums::zero());
            for col in (0..product.weight.cols).step_by(COLS) {
                piece.load(&product, block.clone(), col);
                for (i, sums) in x_rows.clone().zip(&mut sums) {
                    piece.multiply(&product, product.x_rows.at(i), sums);
                }
            }
            for (i, sums) in x_rows.zip(&sums) {
                out.put(i, row, &sums.total()[..block.len()]);
            }
        }
    }
}

/// The accumulators of eight outputs.
#[derive(Clone, Copy)]
struct Sums {
    acc: __m256,
    off: __m256,
}

impl Sums {
    #[inline]
    #[target_feature(enable = "avx2")]
    fn zero() -> Sums {
        Sums { acc: _mm256_setzero_ps(), off: _mm256_setzero_ps() }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn total(&self) -> [f32; ROWS] {
        let mut out = [0.0; ROWS];
        let total = _mm256_add_ps(self.acc, self.off);
        store_floats(&mut out, total);
        out
    }
}

/// Some columns of eight rows; rows beyond the last keep what was there.
struct Piece {
    q: [[u8; COLS]; ROWS],
    /// Of each group, all rows.
    scale: [[f32; ROWS]; GROUPS],
    bias: [[f32; ROWS]; GROUPS],
    groups: Range<usize>,
}

impl Default for Piece {
    fn default() -> Piece {
        let params = [[0.0; ROWS]; GROUPS];
        Piece { q: [[0; COLS]; ROWS], scale: params, bias: params, groups: 0..0 }
    }
}

impl Piece {
    #[target_feature(enable = "avx2,fma,f16c")]
    fn load(&mut self, product: &IntegerProduct<'_>, rows: Range<usize>, col: usize) {
        let IntegerProduct { weight, affine, .. } = product;
        let end = weight.cols.min(col + COLS);
        self.groups = affine.n_groups(col)..affine.n_groups(end);
        let packed_bytes = weight.format.row_bytes(col)..weight.format.row_bytes(end);
        let next_block = rows.end * weight.format.row_bytes(weight.cols);
        for (r, row) in rows.clone().enumerate() {
            let ahead = next_block + packed_bytes.start * ROWS + r * packed_bytes.len();
            ask_for(weight.weight, ahead..ahead + packed_bytes.len());
            let packed = &product.weight_rows(row..row + 1)[packed_bytes.clone()];
            unpack_row(affine.bits, packed, &mut self.q[r][..end - col]);
        }
        let n = self.groups.len();
        let mut by_row = Params([[0.0; GROUPS]; ROWS]);
        by_row.load(product, rows.clone(), self.groups.clone(), weight.scales);
        by_row.transpose(&mut self.scale[..n.next_multiple_of(8)]);
        by_row.load(product, rows, self.groups.clone(), weight.biases);
        by_row.transpose(&mut self.bias[..n.next_multiple_of(8)]);
    }

    /// Adds the products with one row of the activations.
    #[target_feature(enable = "avx2,fma,f16c")]
    fn multiply(&self, product: &IntegerProduct<'_>, x_row: usize, sums: &mut Sums) {
        match (product.affine.group_size, product.affine.bits) {
            (32, 8) => self.multiply_groups::<32, false>(product, x_row, sums),
            (64, 8) => self.multiply_groups::<64, false>(product, x_row, sums),
            (_, 8) => self.multiply_groups::<128, false>(product, x_row, sums),
            (32, _) => self.multiply_groups::<32, true>(product, x_row, sums),
            (64, _) => self.multiply_groups::<64, true>(product, x_row, sums),
            _ => self.multiply_groups::<128, true>(product, x_row, sums),
        }
    }

    /// `SMALL`: all weights are below 64.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn multiply_groups<const GROUP: usize, const SMALL: bool>(
        &self,
        product: &IntegerProduct<'_>,
        x_row: usize,
        sums: &mut Sums,
    ) {
        let (s, st) = (product.x.s(x_row), product.x.st(x_row));
        let (s, st) = (&s[self.groups.clone()], &st[self.groups.clone()]);
        let digit = |digit| {
            let x: &[u8] = bytemuck::cast_slice(product.x.q(x_row, digit));
            x[self.groups.start * GROUP..self.groups.end * GROUP].as_chunks::<GROUP>().0
        };
        let high = digit(0);
        let low = if product.x.n_digits() == 2 { digit(1) } else { &[] };
        let params = self.scale.iter().zip(&self.bias);
        let Sums { mut acc, mut off } = *sums;
        for (g, ((s, st), (scale, bias))) in s.iter().zip(st).zip(params).enumerate() {
            let mut v = [_mm256_setzero_si256(); ROWS];
            for (q, it) in self.q.iter().zip(&mut v) {
                let q = &q.as_chunks::<GROUP>().0[g];
                *it = group_products::<SMALL>(q, &high[g]);
                if let Some(low) = low.get(g) {
                    let low = group_products::<SMALL>(q, low);
                    *it = _mm256_add_epi32(_mm256_slli_epi32::<8>(*it), low);
                }
            }
            let dots = _mm256_cvtepi32_ps(add_lanes(&v));
            let scale = _mm256_mul_ps(load_floats(scale), _mm256_set1_ps(*s));
            acc = _mm256_fmadd_ps(dots, scale, acc);
            off = _mm256_fmadd_ps(load_floats(bias), _mm256_set1_ps(*st), off);
        }
        *sums = Sums { acc, off };
    }
}

/// One parameter of each group of eight rows.
struct Params([[f32; GROUPS]; ROWS]);

impl Params {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn load(
        &mut self,
        product: &IntegerProduct<'_>,
        rows: Range<usize>,
        groups: Range<usize>,
        stored: &[u8],
    ) {
        let format = product.affine.params;
        for (row, out) in rows.zip(&mut self.0) {
            let start = (row * product.n_groups() + groups.start) * format.bytes();
            let bytes = &stored[start..start + groups.len() * format.bytes()];
            decode_floats(format, bytes, &mut out[..groups.len()]);
        }
    }

    /// All rows of each group, side by side.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn transpose(&self, out: &mut [[f32; ROWS]]) {
        for (i, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let mut tile = [_mm256_setzero_ps(); ROWS];
            for (it, row) in tile.iter_mut().zip(&self.0) {
                *it = load_floats(&row.as_chunks::<8>().0[i]);
            }
            for (out, it) in out.iter_mut().zip(transpose(tile)) {
                store_floats(out, it);
            }
        }
    }
}

/// Eight partial sums of one group's products.
#[inline]
#[target_feature(enable = "avx2")]
fn group_products<const SMALL: bool>(q: &[u8], x: &[u8]) -> __m256i {
    let mut sum = _mm256_setzero_si256();
    for (q, x) in q.chunks(64).zip(x.chunks(64)) {
        let products = if SMALL {
            // Sums of four products of 63 * -128 stay above -2^15.
            let mut pairs = _mm256_maddubs_epi16(load_32(q), load_32(x));
            if q.len() > 32 {
                let more = _mm256_maddubs_epi16(load_32(&q[32..]), load_32(&x[32..]));
                pairs = _mm256_add_epi16(pairs, more);
            }
            _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
        } else {
            let mut products = wide_products(q, x);
            if q.len() > 32 {
                products = _mm256_add_epi32(products, wide_products(&q[32..], &x[32..]));
            }
            products
        };
        sum = _mm256_add_epi32(sum, products);
    }
    sum
}

/// The products of 32 columns, any byte with any byte.
#[inline]
#[target_feature(enable = "avx2")]
fn wide_products(q: &[u8], x: &[u8]) -> __m256i {
    let low = _mm256_madd_epi16(_mm256_cvtepu8_epi16(load_16(q)), _mm256_cvtepi8_epi16(load_16(x)));
    let high = _mm256_madd_epi16(
        _mm256_cvtepu8_epi16(load_16(&q[16..])),
        _mm256_cvtepi8_epi16(load_16(&x[16..])),
    );
    _mm256_add_epi32(low, high)
}

/// Lane `i` of the result is the sum of all lanes of `v[i]`.
#[inline]
#[target_feature(enable = "avx2")]
fn add_lanes(v: &[__m256i; 8]) -> __m256i {
    let low = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
    let high = _mm256_hadd_epi32(_mm256_hadd_epi32(v[4], v[5]), _mm256_hadd_epi32(v[6], v[7]));
    _mm256_add_epi32(
        _mm256_permute2x128_si256::<0x20>(low, high),
        _mm256_permute2x128_si256::<0x31>(low, high),
    )
}

/// Has lines fetched that will be wanted soon; they need not exist. Eight rows
/// are eight short streams, which the processor does not foresee: as much of
/// the next eight rows is asked for, in the order of memory.
#[inline]
#[target_feature(enable = "sse")]
fn ask_for(bytes: &[u8], range: Range<usize>) {
    for at in range.step_by(64) {
        _mm_prefetch::<_MM_HINT_T1>(bytes.as_ptr().wrapping_add(at).cast());
    }
}
