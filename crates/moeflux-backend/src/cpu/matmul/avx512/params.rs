//! Scales and biases of sixteen rows, with the rows as lanes.

use std::arch::x86_64::*;
use std::ops::Range;

use moeflux_core::quant::{Float, SmallScale};

use super::transpose::{transpose, transpose_narrow};
use super::vector::{
    ROWS, load_16, load_32, load_64, load_bytes, load_halves, load_singles, pair_halves,
};
use crate::cpu::matmul::integers::{BIAS_OF_E2M1, ParamFormat, symmetric_bias};
use crate::cpu::matmul::product::IntegerProduct;

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
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,f16c")]
pub(in crate::cpu::matmul) fn param_tile(
    product: &IntegerProduct<'_>,
    rows: Range<usize>,
    group: usize,
) -> ParamTile {
    let part = Part { n_groups: product.n_groups(), rows, group };
    let (scales, biases) = (product.weight.scales, product.weight.biases);
    let zero = [_mm512_setzero_ps(); GROUPS];
    let mut out = ParamTile { scale: zero, bias: zero };
    let params = out.scale.iter_mut().zip(&mut out.bias);
    match product.integers.params {
        ParamFormat::Floats(Float::F32) => {
            let both = part.singles(scales).into_iter().zip(part.singles(biases));
            for ((scale, bias), it) in params.zip(both) {
                *scale = _mm512_castsi512_ps(it.0);
                *bias = _mm512_castsi512_ps(it.1);
            }
        }
        ParamFormat::Floats(Float::BF16) => {
            for ((scale, bias), it) in params.zip(part.halves(scales, biases)) {
                (*scale, *bias) = bf16_pair(it);
            }
        }
        ParamFormat::Floats(Float::F16) => {
            for ((scale, bias), it) in params.zip(part.halves(scales, biases)) {
                (*scale, *bias) = f16_pair(it);
            }
        }
        ParamFormat::Symmetric { scales: float, bits } => {
            let stored = match float {
                Float::F32 => part.singles(scales),
                Float::BF16 | Float::F16 => part.halves_of_rows(scales),
            };
            for ((scale, bias), it) in params.zip(stored) {
                (*scale, *bias) = symmetric_pair(float, bits, it);
            }
        }
        ParamFormat::OfE2M1(small) => {
            for ((scale, bias), it) in params.zip(part.bytes_of_rows(scales)) {
                (*scale, *bias) = e2m1_pair(small, it);
            }
        }
    }
    out
}

/// Scale and bias from the lower and upper halves of lanes.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn bf16_pair(it: __m512i) -> (__m512, __m512) {
    let high = _mm512_set1_epi32(0xffff_0000u32 as i32);
    let scale = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(it));
    (scale, _mm512_castsi512_ps(_mm512_and_si512(it, high)))
}

/// Scale and bias from the lower and upper halves of lanes.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn f16_pair(it: __m512i) -> (__m512, __m512) {
    let scale = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(it));
    (scale, _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(it))))
}

/// Scale and bias of integers of `bits` bits from the scale: all of a lane, or its lower half.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn symmetric_pair(float: Float, bits: u8, it: __m512i) -> (__m512, __m512) {
    let scale = match float {
        Float::F32 => _mm512_castsi512_ps(it),
        Float::BF16 => _mm512_castsi512_ps(_mm512_slli_epi32::<16>(it)),
        Float::F16 => _mm512_cvtph_ps(_mm512_cvtepi32_epi16(it)),
    };
    (scale, _mm512_mul_ps(scale, _mm512_set1_ps(symmetric_bias(bits))))
}

/// Scale and bias from the lowest byte of lanes, above which there is nothing.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn e2m1_pair(small: SmallScale, it: __m512i) -> (__m512, __m512) {
    let value = match small {
        SmallScale::E8M0 => powers(it),
        SmallScale::E4M3 => e4m3s(it),
    };
    let bias = _mm512_mul_ps(value, _mm512_set1_ps(BIAS_OF_E2M1));
    (_mm512_mul_ps(value, _mm512_set1_ps(0.5)), bias)
}

/// What lanes of E8M0 stand for.
#[inline]
#[target_feature(enable = "avx512f")]
fn powers(it: __m512i) -> __m512 {
    // 2^-127 is below the smallest normal.
    let smallest = _mm512_set1_epi32(1 << 22);
    let power = _mm512_max_epu32(_mm512_slli_epi32::<23>(it), smallest);
    let is_nan = _mm512_cmpeq_epi32_mask(it, _mm512_set1_epi32(255));
    _mm512_castsi512_ps(_mm512_mask_set1_epi32(power, is_nan, 0x7fc0_0000))
}

/// What lanes of E4M3 stand for.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn e4m3s(it: __m512i) -> __m512 {
    let magnitude = _mm512_slli_epi32::<20>(_mm512_and_si512(it, _mm512_set1_epi32(0x7f)));
    let normal = _mm512_add_epi32(magnitude, _mm512_set1_epi32(120 << 23));
    // The mantissa at the exponent of the smallest normal, less that.
    let small = _mm512_castsi512_ps(_mm512_add_epi32(magnitude, _mm512_set1_epi32(121 << 23)));
    let small = _mm512_castps_si512(_mm512_sub_ps(small, _mm512_set1_ps(0.015_625)));
    let is_small = _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(1 << 23));
    let bits = _mm512_mask_mov_epi32(normal, is_small, small);
    let is_nan = _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(0x7f << 20));
    let bits = _mm512_mask_set1_epi32(bits, is_nan, 0x7fc0_0000);
    let sign = _mm512_slli_epi32::<24>(_mm512_and_si512(it, _mm512_set1_epi32(0x80)));
    _mm512_castsi512_ps(_mm512_or_si512(bits, sign))
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
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,f16c")]
pub(super) fn narrow_params<const N: usize>(
    product: &IntegerProduct<'_>,
    row: usize,
) -> [(__m512, __m512); N] {
    let size = product.integers.params.scale_bytes();
    let span = row * N * size..(row + ROWS) * N * size;
    let scales = &product.weight.scales[span.clone()];
    let biases = product.weight.biases.get(span).unwrap_or(&[]);
    let mut out = [(_mm512_setzero_ps(), _mm512_setzero_ps()); N];
    match product.integers.params {
        ParamFormat::Floats(Float::F32) => {
            let (scales, biases) = (narrow_singles::<N>(scales), narrow_singles::<N>(biases));
            for g in 0..N {
                out[g] = (_mm512_castsi512_ps(scales[g]), _mm512_castsi512_ps(biases[g]));
            }
        }
        ParamFormat::Floats(Float::BF16) => {
            for (out, it) in out.iter_mut().zip(narrow_halves::<N>(scales, biases)) {
                *out = bf16_pair(it);
            }
        }
        ParamFormat::Floats(Float::F16) => {
            for (out, it) in out.iter_mut().zip(narrow_halves::<N>(scales, biases)) {
                *out = f16_pair(it);
            }
        }
        ParamFormat::Symmetric { scales: float, bits } => {
            let stored = match float {
                Float::F32 => narrow_singles::<N>(scales),
                Float::BF16 | Float::F16 => {
                    let mut v = [_mm512_setzero_si512(); N];
                    for (k, it) in v.iter_mut().enumerate() {
                        *it = _mm512_cvtepu16_epi32(load_32(&scales[32 * k..]));
                    }
                    transpose_narrow(v)
                }
            };
            for (out, it) in out.iter_mut().zip(stored) {
                *out = symmetric_pair(float, bits, it);
            }
        }
        ParamFormat::OfE2M1(small) => {
            let mut v = [_mm512_setzero_si512(); N];
            for (k, it) in v.iter_mut().enumerate() {
                *it = _mm512_cvtepu8_epi32(load_16(&scales[16 * k..]));
            }
            for (out, it) in out.iter_mut().zip(transpose_narrow(v)) {
                *out = e2m1_pair(small, it);
            }
        }
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
