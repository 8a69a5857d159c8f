//! Scales and biases of sixteen rows, with the rows as lanes.

use std::arch::x86_64::*;
use std::ops::Range;

use moeflux_core::quant::Float;

use super::lanes::Zmm;
use super::transpose::{transpose, transpose_narrow};
use super::vector::{
    ROWS, load_16, load_32, load_64, load_bytes, load_halves, load_singles, pair_halves,
};
use crate::cpu::matmul::integers::ParamFormat;
use crate::cpu::matmul::product::IntegerProduct;
use crate::cpu::matmul::stored_params::params_of_lanes;

/// Groups of one tile.
pub(in crate::cpu::matmul) const GROUPS: usize = 16;

/// Scale and bias of each group of a tile; lanes are rows.
pub(in crate::cpu::matmul) struct ParamTile {
    pub(in crate::cpu::matmul) scale: [__m512; GROUPS],
    pub(in crate::cpu::matmul) bias: [__m512; GROUPS],
}

/// The parameters of at most 16 `rows` and at most 16 groups from `group` on;
/// what is absent is zero.
#[inline]
#[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
pub(in crate::cpu::matmul) fn param_tile(
    product: &IntegerProduct<'_>,
    rows: Range<usize>,
    group: usize,
) -> ParamTile {
    let part = Part { n_groups: product.n_groups(), rows, group };
    let (scales, biases) = (product.weight.scales, product.weight.biases);
    let zero = [_mm512_setzero_ps(); GROUPS];
    let mut out = ParamTile { scale: zero, bias: zero };
    // A format that is known in each loop, of a lane that holds all of a group.
    macro_rules! fill {
        ($format:expr, $stored:expr) => {{
            let (format, stored) = ($format, $stored);
            for g in 0..GROUPS {
                [out.scale[g], out.bias[g]] = params_of_lanes(Zmm::new(), format, stored[g]);
            }
        }};
    }
    match product.integers.params {
        ParamFormat::Floats(Float::F32) => {
            let (scales, biases) = (part.singles(scales), part.singles(biases));
            for g in 0..GROUPS {
                out.scale[g] = _mm512_castsi512_ps(scales[g]);
                out.bias[g] = _mm512_castsi512_ps(biases[g]);
            }
        }
        ParamFormat::Floats(Float::BF16) => {
            fill!(ParamFormat::Floats(Float::BF16), part.halves(scales, biases));
        }
        ParamFormat::Floats(Float::F16) => {
            fill!(ParamFormat::Floats(Float::F16), part.halves(scales, biases));
        }
        format @ ParamFormat::Symmetric { scales: Float::F32, .. } => {
            fill!(format, part.singles(scales));
        }
        format @ ParamFormat::Symmetric { .. } => fill!(format, part.halves_of_rows(scales)),
        format @ ParamFormat::OfE2M1(_) => fill!(format, part.bytes_of_rows(scales)),
    }
    out
}

/// Eight bytes of each of sixteen rows, `stride` apart: byte `i` of every row in vector `i`, as
/// lanes of 32 bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
pub(super) fn eight_bytes(bytes: &[u8], stride: usize) -> [__m512i; 8] {
    let row = |r: usize| {
        let eight = bytes[r * stride..].first_chunk().expect("eight bytes of each row");
        i64::from_le_bytes(*eight)
    };
    let eight = |r| {
        let (low, high) = ([row(r), row(r + 1), row(r + 2), row(r + 3)], r + 4);
        let [a, b, c, d] = low;
        _mm512_setr_epi64(a, b, c, d, row(high), row(high + 1), row(high + 2), row(high + 3))
    };
    let (low, high) = (eight(0), eight(8));
    let places = const {
        let mut it = [0u8; 64];
        let mut r = 0;
        while r < ROWS {
            it[4 * r] = 8 * r as u8;
            r += 1;
        }
        it
    };
    let places = load_64(&places);
    let mut out = [_mm512_setzero_si512(); 8];
    for (i, out) in out.iter_mut().enumerate() {
        let places = _mm512_add_epi8(places, _mm512_set1_epi8(i as i8));
        let lowest = 0x1111_1111_1111_1111;
        *out = _mm512_maskz_permutex2var_epi8(lowest, low, places, high);
    }
    out
}

/// Scale and bias of each group of sixteen rows from `row` on that have `N`
/// groups each, 1, 2, 4 or 8: those rows' parameters are one stream.
#[inline]
#[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
pub(super) fn narrow_params<const N: usize>(
    product: &IntegerProduct<'_>,
    row: usize,
) -> [[__m512; 2]; N] {
    let size = product.integers.params.scale_bytes();
    let span = row * N * size..(row + ROWS) * N * size;
    let scales = &product.weight.scales[span.clone()];
    let biases = product.weight.biases.get(span).unwrap_or(&[]);
    let mut out = [[_mm512_setzero_ps(); 2]; N];
    let mut v = [_mm512_setzero_si512(); N];
    let stored = match product.integers.params {
        ParamFormat::Floats(Float::F32) => {
            let (scales, biases) = (narrow_singles::<N>(scales), narrow_singles::<N>(biases));
            for g in 0..N {
                out[g] = [_mm512_castsi512_ps(scales[g]), _mm512_castsi512_ps(biases[g])];
            }
            return out;
        }
        ParamFormat::Floats(_) => narrow_halves::<N>(scales, biases),
        ParamFormat::Symmetric { scales: Float::F32, .. } => narrow_singles::<N>(scales),
        ParamFormat::Symmetric { .. } => {
            for (k, it) in v.iter_mut().enumerate() {
                *it = _mm512_cvtepu16_epi32(load_32(&scales[32 * k..]));
            }
            transpose_narrow(v)
        }
        ParamFormat::OfE2M1(_) => {
            for (k, it) in v.iter_mut().enumerate() {
                *it = _mm512_cvtepu8_epi32(load_16(&scales[16 * k..]));
            }
            transpose_narrow(v)
        }
    };
    for (out, it) in out.iter_mut().zip(stored) {
        *out = params_of_lanes(Zmm::new(), product.integers.params, it);
    }
    out
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2")]
fn narrow_halves<const N: usize>(scales: &[u8], biases: &[u8]) -> [__m512i; N] {
    let mut v = [_mm512_setzero_si512(); N];
    for (k, it) in v.iter_mut().enumerate() {
        *it = pair_halves(load_32(&scales[32 * k..]), load_32(&biases[32 * k..]));
    }
    transpose_narrow(v)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2")]
fn narrow_singles<const N: usize>(all: &[u8]) -> [__m512i; N] {
    let mut v = [_mm512_setzero_si512(); N];
    for (k, it) in v.iter_mut().enumerate() {
        *it = load_64(&all[64 * k..]);
    }
    transpose_narrow(v)
}

struct Part {
    n_groups: usize,
    rows: Range<usize>,
    group: usize,
}

impl Part {
    /// The bytes of one row's part; none for a row beyond the last.
    #[inline]
    fn bytes<'a>(&self, all: &'a [u8], row: usize, size: usize) -> &'a [u8] {
        let row = self.rows.start + row;
        if row >= self.rows.end {
            return &[];
        }
        let n = GROUPS.min(self.n_groups - self.group);
        &all[(row * self.n_groups + self.group) * size..][..n * size]
    }

    /// Transposed 16-bit scales in the lower halves, biases in the upper.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2")]
    fn halves(&self, scales: &[u8], biases: &[u8]) -> [__m512i; GROUPS] {
        let mut rows = [_mm512_setzero_si512(); ROWS];
        for (r, it) in rows.iter_mut().enumerate() {
            let scale = load_halves(self.bytes(scales, r, 2));
            *it = pair_halves(scale, load_halves(self.bytes(biases, r, 2)));
        }
        transpose(rows)
    }

    /// Transposed elements of 16 bits, as lanes of 32.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2")]
    fn halves_of_rows(&self, all: &[u8]) -> [__m512i; GROUPS] {
        let mut rows = [_mm512_setzero_si512(); ROWS];
        for (r, it) in rows.iter_mut().enumerate() {
            *it = _mm512_cvtepu16_epi32(load_halves(self.bytes(all, r, 2)));
        }
        transpose(rows)
    }

    /// Transposed bytes, as lanes of 32 bits.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2")]
    fn bytes_of_rows(&self, all: &[u8]) -> [__m512i; GROUPS] {
        let mut rows = [_mm512_setzero_si512(); ROWS];
        for (r, it) in rows.iter_mut().enumerate() {
            *it = _mm512_cvtepu8_epi32(load_bytes(self.bytes(all, r, 1)));
        }
        transpose(rows)
    }

    /// Transposed 32-bit parameters.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2")]
    fn singles(&self, all: &[u8]) -> [__m512i; GROUPS] {
        let mut rows = [_mm512_setzero_si512(); ROWS];
        for (r, it) in rows.iter_mut().enumerate() {
            *it = load_singles(self.bytes(all, r, 4));
        }
        transpose(rows)
    }
}
