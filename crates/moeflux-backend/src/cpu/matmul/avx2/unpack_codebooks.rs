//! The codes of 256 columns in blocks whose codes select entries of a codebook, as
//! [`BlockType::decode`](moeflux_core::quant::BlockType::decode) defines them.

use std::arch::x86_64::*;

use moeflux_core::quant::Codebooks;

use super::vector::VECTORS;

#[inline(always)]
fn u16_at(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

#[inline(always)]
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Four entries of eight columns.
#[inline]
#[target_feature(enable = "avx2")]
fn octets(entries: [u64; 4]) -> __m256i {
    let [a, b, c, d] = entries.map(u64::cast_signed);
    _mm256_setr_epi64x(a, b, c, d)
}

/// Eight entries of four columns.
#[inline]
#[target_feature(enable = "avx2")]
fn quartets(entries: [u32; 8]) -> __m256i {
    let [a, b, c, d, e, f, g, h] = entries.map(u32::cast_signed);
    _mm256_setr_epi32(a, b, c, d, e, f, g, h)
}

/// `zero` plus the value where the bit of a column is clear, and less it where it is set.
#[inline]
#[target_feature(enable = "avx2")]
fn signed(zero: u8, values: __m256i, signs: u32) -> __m256i {
    // Byte `i` of the bits in every column of eight, and its bit there.
    let spread =
        _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
    let places = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64.cast_signed());
    let bits = _mm256_shuffle_epi8(_mm256_set1_epi32(signs.cast_signed()), spread);
    let is_minus = _mm256_cmpeq_epi8(_mm256_and_si256(bits, places), places);
    let signed = _mm256_sub_epi8(_mm256_xor_si256(values, is_minus), is_minus);
    _mm256_add_epi8(signed, _mm256_set1_epi8(zero.cast_signed()))
}

/// The sign bits of 32 columns from four fields of seven bits.
#[inline(always)]
fn four_signs(fields: [usize; 4]) -> u32 {
    let signs = |k: usize| Codebooks::EVEN_SIGNS[fields[k] & 127];
    u32::from_le_bytes([signs(0), signs(1), signs(2), signs(3)])
}

/// The sign bits of 32 columns from four fields of seven bits, one after the other.
#[inline(always)]
fn signs_of_fields(fields: u32) -> u32 {
    let fields = fields as usize;
    four_signs([fields, fields >> 7, fields >> 14, fields >> 21])
}

/// The vector of each 32 columns; a macro, as closures of all types are not inlined.
macro_rules! vectors {
    (|$i:ident| $vector:expr) => {{
        let mut out = [_mm256_setzero_si256(); VECTORS];
        for ($i, out) in out.iter_mut().enumerate() {
            *out = $vector;
        }
        out
    }};
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn iq2_xxs(block: &[u8; 66]) -> [__m256i; VECTORS] {
    vectors!(|i| {
        let at = 2 + 8 * i;
        let entry = |k: usize| Codebooks::iq2_xxs(usize::from(block[at + k]));
        let values = octets([entry(0), entry(1), entry(2), entry(3)]);
        signed(Codebooks::IQ2_ZERO, values, signs_of_fields(u32_at(block, at + 4)))
    })
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn iq2_xs(block: &[u8; 74]) -> [__m256i; VECTORS] {
    vectors!(|i| {
        let both = |k: usize| u16_at(block, 2 + 8 * i + 2 * k);
        let entry = |k: usize| Codebooks::iq2_xs(both(k) & 511);
        let values = octets([entry(0), entry(1), entry(2), entry(3)]);
        let signs = four_signs([both(0) >> 9, both(1) >> 9, both(2) >> 9, both(3) >> 9]);
        signed(Codebooks::IQ2_ZERO, values, signs)
    })
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn iq2_s(block: &[u8; 82]) -> [__m256i; VECTORS] {
    vectors!(|i| {
        let upper = usize::from(block[66 + i]) << 8;
        let entry = |k: usize| {
            Codebooks::iq2_s(usize::from(block[2 + 4 * i + k]) | upper >> (2 * k) & 0x300)
        };
        let values = octets([entry(0), entry(1), entry(2), entry(3)]);
        signed(Codebooks::IQ2_ZERO, values, u32_at(block, 34 + 4 * i))
    })
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn iq3_xxs(block: &[u8; 98]) -> [__m256i; VECTORS] {
    vectors!(|i| {
        let entry = |k: usize| Codebooks::iq3_xxs(usize::from(block[2 + 8 * i + k]));
        let values = quartets([
            entry(0),
            entry(1),
            entry(2),
            entry(3),
            entry(4),
            entry(5),
            entry(6),
            entry(7),
        ]);
        signed(Codebooks::IQ3_XXS_ZERO, values, signs_of_fields(u32_at(block, 66 + 4 * i)))
    })
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn iq3_s(block: &[u8; 110]) -> [__m256i; VECTORS] {
    vectors!(|i| {
        let ninth = usize::from(block[66 + i]) << 8;
        let entry =
            |k: usize| Codebooks::iq3_s(usize::from(block[2 + 8 * i + k]) | ninth >> k & 0x100);
        let values = quartets([
            entry(0),
            entry(1),
            entry(2),
            entry(3),
            entry(4),
            entry(5),
            entry(6),
            entry(7),
        ]);
        signed(Codebooks::IQ3_S_ZERO, values, u32_at(block, 74 + 4 * i))
    })
}

/// Two more than entries that are not shifted down.
#[inline(always)]
fn iq1_entry(idx: usize, is_shifted: bool) -> u64 {
    Codebooks::iq1(idx) + if is_shifted { 0 } else { 0x0202_0202_0202_0202 }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn iq1_s(block: &[u8; 50]) -> [__m256i; VECTORS] {
    vectors!(|i| {
        let fields = u16_at(block, 34 + 2 * i);
        let entry = |k: usize| {
            let idx = usize::from(block[2 + 4 * i + k]) | (fields >> (3 * k) & 7) << 8;
            iq1_entry(idx, fields >> 15 == 1)
        };
        octets([entry(0), entry(1), entry(2), entry(3)])
    })
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn iq1_m(block: &[u8; 56]) -> [__m256i; VECTORS] {
    vectors!(|i| {
        let fields = u16_at(block, 32 + 2 * i);
        let entry = |k: usize| {
            let field = fields >> (4 * k) & 15;
            iq1_entry(usize::from(block[4 * i + k]) | (field & 7) << 8, field >> 3 == 1)
        };
        octets([entry(0), entry(1), entry(2), entry(3)])
    })
}
