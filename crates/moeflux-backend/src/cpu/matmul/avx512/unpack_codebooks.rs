//! The codes of 256 columns in blocks whose codes select entries of a codebook, as
//! [`BlockType::decode`](moeflux_core::quant::BlockType::decode) defines them.
//!
//! An entry of the IQ2 and IQ3 types is sixteen bits: the numbers of the levels of eight columns or of
//! four. Tables of up to 1,024 entries are looked up in registers, 32 or 64 indices at a time; then the
//! numbers are spread to a byte a column, and a shuffle gives the codes of number and sign.

use std::arch::x86_64::*;

use moeflux_core::quant::Codebooks;

use super::vector::{STEP_LINES, gather_octets, load_16, load_32, load_64, store_32};

/// The first bits of the numbers of eight columns in a word of 16 bits, and of twice four in two.
const OCTET: i64 = i64::from_le_bytes([0, 2, 4, 6, 8, 10, 12, 14]);
const TWO_QUARTETS: i64 = i64::from_le_bytes([0, 3, 6, 9, 16, 19, 22, 25]);
/// The first bits of four fields of seven bits.
const SIGN_FIELDS: i64 = i64::from_le_bytes([0, 7, 14, 21, 0, 0, 0, 0]);

/// The bytes that hold eight words from `first` on, each for all bytes of an octet.
const fn words_of_octets(first: u8) -> [u8; 64] {
    let mut out = [0; 64];
    let mut i = 0;
    while i < 64 {
        out[i] = 2 * (first + i as u8 / 8) + i as u8 % 2;
        i += 1;
    }
    out
}

/// The lower four bytes of each octet.
const LOWER_QUARTETS: [u8; 64] = {
    let mut out = [0; 64];
    let mut i = 0;
    while i < 32 {
        out[i] = 8 * (i as u8 / 4) + i as u8 % 4;
        i += 1;
    }
    out
};

/// Byte `i` in the lower byte of the words `4 * i` to `4 * i + 3`.
const BYTES_OF_WORDS: [u8; 64] = {
    let mut out = [0; 64];
    let mut i = 0;
    while i < 32 {
        out[2 * i] = i as u8 / 4;
        i += 1;
    }
    out
};

/// The order of 64 entries of four columns in which the words of an octet, once the lower and upper
/// bytes of entries are interleaved in lanes of 128 bits, are two entries of one line and two of the
/// next.
const INTERLEAVED: [u8; 64] = {
    let mut out = [0; 64];
    let mut octet = 0;
    while octet < 8 {
        let mut i = 0;
        while i < 8 {
            let (lines, line) = (i / 4, i / 2 % 2);
            let place = 16 * (octet / 2) + 8 * lines + 4 * (octet % 2) + i % 4;
            out[place] = (16 * (2 * lines + line) + 2 * octet + i % 2) as u8;
            i += 1;
        }
        octet += 1;
    }
    out
};

/// Where the bits of 64 entries are, in the order of [`INTERLEAVED`]: the byte, and the bit in it.
const INTERLEAVED_BYTES: [u8; 64] = interleaved_places(false);
const INTERLEAVED_BITS: [u8; 64] = interleaved_places(true);

const fn interleaved_places(is_bit: bool) -> [u8; 64] {
    let mut out = [0; 64];
    let mut i = 0;
    while i < 64 {
        let place = INTERLEAVED[i];
        out[i] = if is_bit { 1 << (place % 8) } else { place / 8 };
        i += 1;
    }
    out
}

/// The lanes of the vector of `$found` whose number these bits are, the lowest first.
macro_rules! choose {
    ($blend:ident, $found:expr, $bits:expr) => {{
        let (mut found, mut n) = ($found, $found.len());
        for bit in $bits {
            n /= 2;
            for i in 0..n {
                found[i] = $blend(bit, found[2 * i], found[2 * i + 1]);
            }
        }
        found[0]
    }};
}

/// The entries of 32 indices, which are words, in a table of `64 << BITS` entries of two bytes. The
/// lower six bits are those of `indices`, the next ones are given.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn word_entries<const TABLES: usize, const BITS: usize>(
    book: &[u8],
    indices: __m512i,
    upper: [__mmask32; BITS],
) -> __m512i {
    const { assert!(TABLES == 1 << BITS) };
    let mut found = [_mm512_setzero_si512(); TABLES];
    for (i, found) in found.iter_mut().enumerate() {
        let part = &book[128 * i..][..128];
        *found = _mm512_permutex2var_epi16(load_64(part), indices, load_64(&part[64..]));
    }
    choose!(_mm512_mask_blend_epi16, found, upper)
}

/// One byte of the entries of 64 indices, which are bytes, in a table of `128 << BITS` entries. The
/// lower seven bits are those of `indices`, the next ones are given.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn byte_entries<const TABLES: usize, const BITS: usize>(
    book: &[u8],
    indices: __m512i,
    upper: [__mmask64; BITS],
) -> __m512i {
    const { assert!(TABLES == 1 << BITS) };
    let mut found = [_mm512_setzero_si512(); TABLES];
    for (i, found) in found.iter_mut().enumerate() {
        let part = &book[128 * i..][..128];
        *found = _mm512_permutex2var_epi8(load_64(part), indices, load_64(&part[64..]));
    }
    choose!(_mm512_mask_blend_epi8, found, upper)
}

/// Where a bit of the words is set.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn has_bit<const BIT: u32>(words: __m512i) -> __mmask32 {
    _mm512_test_epi16_mask(words, _mm512_set1_epi16(1 << BIT))
}

/// The codes of 64 columns: those of the `line`-th eight of 32 entries of eight columns, with these
/// sign bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx2")]
fn octets(entries: __m512i, line: usize, minus: u64) -> __m512i {
    let places: &[[u8; 64]; STEP_LINES] = const {
        &[words_of_octets(0), words_of_octets(8), words_of_octets(16), words_of_octets(24)]
    };
    let spread = _mm512_permutexvar_epi8(load_64(&places[line]), entries);
    let numbers = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(OCTET), spread);
    signed::<3>(&Codebooks::IQ2_CODES, numbers, minus)
}

/// The codes of 256 columns from both bytes of 64 entries of four columns, which are [`INTERLEAVED`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx2")]
fn all_quartets(
    codes: &[u8; 16],
    low: __m512i,
    high: __m512i,
    minus: [u64; STEP_LINES],
) -> [__m512i; STEP_LINES] {
    let entries = [_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)];
    let first = [TWO_QUARTETS, TWO_QUARTETS + 0x2020_2020_2020_2020];
    let mut out = [_mm512_setzero_si512(); STEP_LINES];
    for (line, out) in out.iter_mut().enumerate() {
        let first = _mm512_set1_epi64(first[line % 2]);
        let numbers = _mm512_multishift_epi64_epi8(first, entries[line / 2]);
        *out = signed::<7>(codes, numbers, minus[line]);
    }
    out
}

/// 64 bytes in the order of [`INTERLEAVED`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn interleaved(bytes: &[u8]) -> __m512i {
    _mm512_permutexvar_epi8(load_64(const { &INTERLEAVED }), load_64(bytes))
}

/// 64 bits in the order of [`INTERLEAVED`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn interleaved_bits(bits: u64) -> __mmask64 {
    let bytes = _mm512_set1_epi64(bits.cast_signed());
    let bytes = _mm512_permutexvar_epi8(load_64(const { &INTERLEAVED_BYTES }), bytes);
    _mm512_test_epi8_mask(bytes, load_64(const { &INTERLEAVED_BITS }))
}

/// The codes of numbers, of which the bits of `MASK` count, with sign bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx2")]
fn signed<const MASK: i8>(codes: &[u8; 16], numbers: __m512i, minus: u64) -> __m512i {
    let numbers = _mm512_and_si512(numbers, _mm512_set1_epi8(MASK));
    let numbers = _mm512_mask_add_epi8(numbers, minus, numbers, _mm512_set1_epi8(8));
    _mm512_shuffle_epi8(_mm512_broadcast_i32x4(load_16(codes)), numbers)
}

/// Eight sign bits from the lower seven bits of each byte.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn even_signs(fields: __m512i) -> __m512i {
    let (low, high) = Codebooks::EVEN_SIGNS.split_at(64);
    _mm512_permutex2var_epi8(load_64(low), fields, load_64(high))
}

/// The sign bits of 256 columns from eight octets: four fields of seven bits in each, from bit `AT` on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx2")]
fn signs_of_fields<const AT: u8>(octets: __m512i) -> [u64; STEP_LINES] {
    let first = _mm512_set1_epi64(const { SIGN_FIELDS + 0x0101_0101 * AT as i64 });
    let fields = _mm512_multishift_epi64_epi8(first, octets);
    let places = load_64(const { &LOWER_QUARTETS });
    let signs = _mm512_permutexvar_epi8(places, even_signs(fields));
    sign_bits(_mm512_castsi512_si256(signs))
}

#[inline]
#[target_feature(enable = "avx2")]
fn sign_bits(signs: __m256i) -> [u64; STEP_LINES] {
    let mut out = [0; STEP_LINES];
    store_32(bytemuck::bytes_of_mut(&mut out), signs);
    out
}

#[inline(always)]
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("eight bytes"))
}

/// The sign bits of 256 columns, one after the other.
#[inline(always)]
fn plain_signs(bytes: &[u8]) -> [u64; STEP_LINES] {
    [u64_at(bytes, 0), u64_at(bytes, 8), u64_at(bytes, 16), u64_at(bytes, 24)]
}

/// 32 bytes as words.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx2")]
fn words_of_bytes(bytes: &[u8]) -> __m512i {
    _mm512_cvtepu8_epi16(load_32(bytes))
}

/// Per 32 columns: four indices, then four sign fields and a scale in 32 bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx2")]
pub(super) fn iq2_xxs(block: &[u8]) -> [__m512i; STEP_LINES] {
    let parts = load_64(&block[2..]);
    let indices = _mm512_permutexvar_epi8(load_64(const { &LOWER_QUARTETS }), parts);
    let indices = _mm512_cvtepu8_epi16(_mm512_castsi512_si256(indices));
    let upper = [has_bit::<6>(indices), has_bit::<7>(indices)];
    let entries = word_entries::<4, 2>(Codebooks::IQ2_XXS, indices, upper);
    let minus = signs_of_fields::<32>(parts);
    all_octets(entries, minus)
}

/// Per eight columns 16 bits: nine of an index, seven of a sign field.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx2")]
pub(super) fn iq2_xs(block: &[u8]) -> [__m512i; STEP_LINES] {
    let fields = load_64(&block[2..]);
    let upper = [has_bit::<6>(fields), has_bit::<7>(fields), has_bit::<8>(fields)];
    let entries = word_entries::<8, 3>(Codebooks::IQ2_XS, fields, upper);
    let signs = even_signs(_mm512_srli_epi16::<9>(fields));
    all_octets(entries, sign_bits(_mm512_cvtepi16_epi8(signs)))
}

/// Low bytes of indices, plain sign bits, the upper two bits of indices.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx2")]
pub(super) fn iq2_s(block: &[u8]) -> [__m512i; STEP_LINES] {
    let indices = words_of_bytes(&block[2..]);
    // Two bits for each of four words.
    let bytes = _mm512_set1_epi64(u64_at(block, 66).cast_signed());
    let two = _mm512_permutexvar_epi8(load_64(const { &BYTES_OF_WORDS }), bytes);
    let first = _mm512_set1_epi64(i64::from_le_bytes([1, 0, 4, 0, 16, 0, 64, 0]));
    let upper = [
        has_bit::<6>(indices),
        has_bit::<7>(indices),
        _mm512_test_epi16_mask(two, first),
        _mm512_test_epi16_mask(two, _mm512_slli_epi16::<1>(first)),
    ];
    let entries = word_entries::<16, 4>(Codebooks::IQ2_S, indices, upper);
    all_octets(entries, plain_signs(&block[34..]))
}

/// The codes of 32 entries of eight columns.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx2")]
fn all_octets(entries: __m512i, minus: [u64; STEP_LINES]) -> [__m512i; STEP_LINES] {
    let mut out = [_mm512_setzero_si512(); STEP_LINES];
    for (line, out) in out.iter_mut().enumerate() {
        *out = octets(entries, line, minus[line]);
    }
    out
}

/// Indices of four columns each; then, per 32 columns, four sign fields and a scale in 32 bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx2")]
pub(super) fn iq3_xxs(block: &[u8]) -> [__m512i; STEP_LINES] {
    let indices = interleaved(&block[2..]);
    let upper = [_mm512_movepi8_mask(indices)];
    let (low, high) = Codebooks::IQ3_XXS.split_at(256);
    let low = byte_entries::<2, 1>(low, indices, upper);
    let high = byte_entries::<2, 1>(high, indices, upper);
    let minus = signs_of_fields::<0>(_mm512_cvtepu32_epi64(load_32(&block[66..])));
    all_quartets(&Codebooks::IQ3_XXS_CODES, low, high, minus)
}

/// Low bytes of indices, their ninth bits, plain sign bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx2")]
pub(super) fn iq3_s(block: &[u8]) -> [__m512i; STEP_LINES] {
    let indices = interleaved(&block[2..]);
    let upper = [_mm512_movepi8_mask(indices), interleaved_bits(u64_at(block, 66))];
    let (low, high) = Codebooks::IQ3_S.split_at(512);
    let low = byte_entries::<4, 2>(low, indices, upper);
    let high = byte_entries::<4, 2>(high, indices, upper);
    all_quartets(&Codebooks::IQ3_S_CODES, low, high, plain_signs(&block[74..]))
}

/// The codes of 256 columns of an IQ1 type: eight of each entry, whose index is a byte and three bits
/// of a field, and two more unless the field's fourth bit says that the entry is shifted down. The
/// other bits of the fields, which are words, do not count.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
fn iq1(low: &[u8], fields: __m512i) -> [__m512i; STEP_LINES] {
    let upper = _mm512_slli_epi16::<8>(_mm512_and_si512(fields, _mm512_set1_epi16(7)));
    let indices = _mm512_or_si512(words_of_bytes(low), upper);
    let is_shifted = has_bit::<3>(fields);
    let eights = [
        _mm512_castsi512_si128(indices),
        _mm512_extracti32x4_epi32::<1>(indices),
        _mm512_extracti32x4_epi32::<2>(indices),
        _mm512_extracti32x4_epi32::<3>(indices),
    ];
    let mut out = [_mm512_setzero_si512(); STEP_LINES];
    for (line, out) in out.iter_mut().enumerate() {
        let entries = gather_octets(Codebooks::IQ1, _mm256_cvtepu16_epi32(eights[line]));
        let more = !(is_shifted >> (8 * line)) as __mmask8;
        let twos = _mm512_maskz_set1_epi64(more, 0x0202_0202_0202_0202);
        *out = _mm512_add_epi8(entries, twos);
    }
    out
}

/// Low bytes of indices; per 32 columns 16 bits: four times three upper bits, a scale, the shift.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx2")]
pub(super) fn iq1_s(block: &[u8]) -> [__m512i; STEP_LINES] {
    let fields = _mm512_castsi128_si512(load_16(&block[34..]));
    let fields = _mm512_permutexvar_epi8(load_64(const { &words_of_octets(0) }), fields);
    let three = _mm512_set1_epi64(i64::from_le_bytes([0, 0, 3, 0, 6, 0, 9, 0]));
    let upper = _mm512_and_si512(_mm512_srlv_epi16(fields, three), _mm512_set1_epi16(7));
    let shift = _mm512_and_si512(_mm512_srli_epi16::<12>(fields), _mm512_set1_epi16(8));
    iq1(&block[2..], _mm512_or_si512(upper, shift))
}

/// Low bytes of indices; per eight columns a nibble: three upper bits and the shift.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
pub(super) fn iq1_m(block: &[u8]) -> [__m512i; STEP_LINES] {
    // Both nibbles of a byte in words of their own.
    let bytes = _mm512_cvtepu8_epi32(load_16(&block[32..]));
    iq1(block, _mm512_or_si512(bytes, _mm512_slli_epi32::<12>(bytes)))
}
