//! The types whose codes select entries of a codebook: eight columns an index (IQ1, IQ2) or four
//! (IQ3).
//!
//! The codebooks are trained choices without a formula. `codebooks.bin` holds them one after
//! another, each entry as 16 bits: the numbers of its levels, two or three bits a column, the first
//! column lowest. `tools/gguf/blocks.py codebooks` makes the file from ggml's Python package.

use super::parts::{Codes, Params, half, half_to_f32};
use super::planes::IQ4_LEVELS;

static STORED: Lines<9216> = Lines(*include_bytes!("codebooks.bin"));

/// Begins where a line of the processor's cache does.
#[repr(C, align(64))]
struct Lines<const BYTES: usize>([u8; BYTES]);

const IQ2_LEVELS: [u8; 3] = [8, 25, 43];
const IQ3_XXS_LEVELS: [u8; 8] = [4, 12, 20, 28, 36, 44, 52, 62];
const IQ3_S_LEVELS: [u8; 8] = [1, 3, 5, 7, 9, 11, 13, 15];
/// Eight times -1, 0 and 1, and eight more.
const IQ1_LEVELS: [u8; 3] = [0, 8, 16];

static IQ2_XXS: [u64; 256] = octets(0, &IQ2_LEVELS);
static IQ2_XS: [u64; 512] = octets(256, &IQ2_LEVELS);
static IQ2_S: [u64; 1024] = octets(256 + 512, &IQ2_LEVELS);
static IQ3_XXS: [u32; 256] = quartets(1792, &IQ3_XXS_LEVELS);
static IQ3_S: [u32; 512] = quartets(1792 + 256, &IQ3_S_LEVELS);
static IQ1: [u64; 2048] = octets(2560, &IQ1_LEVELS);

static IQ3_XXS_PLANES: Lines<512> = planes(1792);
static IQ3_S_PLANES: Lines<1024> = planes(1792 + 256);

/// For each of eight sign bits a byte, 255 for a minus.
static SIGNS: [u64; 256] = signs();

/// A codebook, a byte a column, with entries of eight columns or of four.
pub(super) enum Book {
    Octets(&'static [u64]),
    Quartets(&'static [u32]),
}

impl Book {
    pub(super) const IQ2_XXS: Book = Book::Octets(&IQ2_XXS);
    pub(super) const IQ2_XS: Book = Book::Octets(&IQ2_XS);
    pub(super) const IQ2_S: Book = Book::Octets(&IQ2_S);
    pub(super) const IQ3_XXS: Book = Book::Quartets(&IQ3_XXS);
    pub(super) const IQ3_S: Book = Book::Quartets(&IQ3_S);
    /// Eight more than eight times what entries say.
    pub(super) const IQ1: Book = Book::Octets(&IQ1);

    pub(super) fn bytes(&self) -> Vec<u8> {
        match self {
            Book::Octets(entries) => entries.iter().flat_map(|entry| entry.to_le_bytes()).collect(),
            Book::Quartets(entries) => {
                entries.iter().flat_map(|entry| entry.to_le_bytes()).collect()
            }
        }
    }
}

/// Eight sign bits from seven: the number of minuses is even.
static EVEN_SIGNS: Lines<128> = {
    let mut out = [0; 128];
    let mut field = 0;
    while field < 128 {
        out[field] = (field | (field.count_ones() as usize & 1) << 7) as u8;
        field += 1;
    }
    Lines(out)
};

const IQ2_ZERO: u8 = Codebooks::IQ2_ZERO;
const IQ3_XXS_ZERO: u8 = Codebooks::IQ3_XXS_ZERO;
const IQ3_S_ZERO: u8 = Codebooks::IQ3_S_ZERO;
const IQ1_ZERO: u8 = 9;

/// The tables of the types, for kernels that unpack codes themselves: a byte a column, the first
/// column lowest.
#[derive(Clone, Copy, Debug)]
pub struct Codebooks;

impl Codebooks {
    /// The levels of IQ4_NL and IQ4_XS, as codes.
    pub const IQ4_LEVELS: [u8; 16] = IQ4_LEVELS;
    /// The code of zero in the IQ2 types; values are below it, and a code is it plus or minus a
    /// value.
    pub const IQ2_ZERO: u8 = 43;
    /// As [`IQ2_ZERO`](Codebooks::IQ2_ZERO), for IQ3_XXS.
    pub const IQ3_XXS_ZERO: u8 = 62;
    /// As [`IQ2_ZERO`](Codebooks::IQ2_ZERO), for IQ3_S.
    pub const IQ3_S_ZERO: u8 = 15;
    /// Eight sign bits from seven: the number of minuses is even.
    pub const EVEN_SIGNS: &[u8; 128] = &EVEN_SIGNS.0;
    /// The codes of the IQ2 types by the numbers of their levels, and from the eighth on those of
    /// minuses; where there is no level, zero's.
    pub const IQ2_CODES: [u8; 16] = codes_of(IQ2_ZERO, &IQ2_LEVELS);
    /// As [`IQ2_CODES`](Codebooks::IQ2_CODES), for IQ3_XXS.
    pub const IQ3_XXS_CODES: [u8; 16] = codes_of(IQ3_XXS_ZERO, &IQ3_XXS_LEVELS);
    /// As [`IQ2_CODES`](Codebooks::IQ2_CODES), for IQ3_S.
    pub const IQ3_S_CODES: [u8; 16] = codes_of(IQ3_S_ZERO, &IQ3_S_LEVELS);
    /// 256 entries of IQ2_XXS in two bytes each: the numbers of the levels of eight columns, two bits
    /// a column, the first column lowest.
    pub const IQ2_XXS: &[u8; 512] = numbers(0);
    /// As [`IQ2_XXS`](Codebooks::IQ2_XXS), 512 entries.
    pub const IQ2_XS: &[u8; 1024] = numbers(256);
    /// As [`IQ2_XXS`](Codebooks::IQ2_XXS), 1,024 entries.
    pub const IQ2_S: &[u8; 2048] = numbers(256 + 512);
    /// 256 entries of IQ3_XXS, their lower bytes and then their upper ones: the numbers of the levels
    /// of four columns, three bits a column, the first column lowest.
    pub const IQ3_XXS: &[u8; 512] = &IQ3_XXS_PLANES.0;
    /// As [`IQ3_XXS`](Codebooks::IQ3_XXS), 512 entries.
    pub const IQ3_S: &[u8; 1024] = &IQ3_S_PLANES.0;
    /// The codes of an entry of IQ1_S and IQ1_M that is shifted down, a byte a column.
    pub const IQ1: &[u64; 2048] = &IQ1;

    /// The values of an entry of IQ2_XXS; 256 entries.
    #[inline(always)]
    pub fn iq2_xxs(idx: usize) -> u64 {
        IQ2_XXS[idx]
    }

    /// The values of an entry of IQ2_XS; 512 entries.
    #[inline(always)]
    pub fn iq2_xs(idx: usize) -> u64 {
        IQ2_XS[idx]
    }

    /// The values of an entry of IQ2_S; 1,024 entries.
    #[inline(always)]
    pub fn iq2_s(idx: usize) -> u64 {
        IQ2_S[idx]
    }

    /// The values of an entry of IQ3_XXS; 256 entries.
    #[inline(always)]
    pub fn iq3_xxs(idx: usize) -> u32 {
        IQ3_XXS[idx]
    }

    /// The values of an entry of IQ3_S; 512 entries.
    #[inline(always)]
    pub fn iq3_s(idx: usize) -> u32 {
        IQ3_S[idx]
    }

    /// The codes of an entry of IQ1_S and IQ1_M that is shifted down; 2,048 entries.
    #[inline(always)]
    pub fn iq1(idx: usize) -> u64 {
        IQ1[idx]
    }
}

/// The entries of a codebook as they are stored.
const fn numbers<const BYTES: usize>(first: usize) -> &'static [u8; BYTES] {
    match STORED.0.split_at(2 * first).1.first_chunk() {
        Some(entries) => entries,
        None => panic!("the file has all codebooks"),
    }
}

/// The lower bytes of entries as they are stored, then the upper ones.
const fn planes<const BYTES: usize>(first: usize) -> Lines<BYTES> {
    let mut out = [0; BYTES];
    let mut i = 0;
    while i < BYTES / 2 {
        let [low, high, ..] = stored(first + i).to_le_bytes();
        (out[i], out[BYTES / 2 + i]) = (low, high);
        i += 1;
    }
    Lines(out)
}

const fn codes_of<const N: usize>(zero: u8, levels: &[u8; N]) -> [u8; 16] {
    let mut out = [zero; 16];
    let mut i = 0;
    while i < N {
        (out[i], out[8 + i]) = (zero + levels[i], zero - levels[i]);
        i += 1;
    }
    out
}

const fn stored(entry: usize) -> u64 {
    STORED.0[2 * entry] as u64 | (STORED.0[2 * entry + 1] as u64) << 8
}

/// `N` entries from `first` on, a byte a column, the first column lowest.
const fn octets<const N: usize>(first: usize, levels: &[u8; 3]) -> [u64; N] {
    let mut out = [0; N];
    let mut i = 0;
    while i < N {
        let numbers = stored(first + i);
        let mut col = 0;
        while col < 8 {
            out[i] |= (levels[(numbers >> (2 * col) & 3) as usize] as u64) << (8 * col);
            col += 1;
        }
        i += 1;
    }
    out
}

/// As [`octets`], for entries of four columns.
const fn quartets<const N: usize>(first: usize, levels: &[u8; 8]) -> [u32; N] {
    let mut out = [0; N];
    let mut i = 0;
    while i < N {
        let numbers = stored(first + i);
        let mut col = 0;
        while col < 4 {
            out[i] |= (levels[(numbers >> (3 * col) & 7) as usize] as u32) << (8 * col);
            col += 1;
        }
        i += 1;
    }
    out
}

const fn signs() -> [u64; 256] {
    let mut out = [0; 256];
    let mut bits = 0;
    while bits < 256 {
        let mut col = 0;
        while col < 8 {
            if bits >> col & 1 == 1 {
                out[bits] |= 0xff << (8 * col);
            }
            col += 1;
        }
        bits += 1;
    }
    out
}

#[inline(always)]
fn even_signs(field: u32) -> usize {
    usize::from(EVEN_SIGNS.0[(field & 127) as usize])
}

/// `zero + value` or `zero - value` of eight columns. No byte carries, as `value <= zero` and
/// `2 * zero < 256`.
#[inline(always)]
fn signed(zero: u8, values: u64, signs: usize) -> [u8; 8] {
    let zeros = 0x0101_0101_0101_0101 * u64::from(zero);
    (zeros + values - 2 * (values & SIGNS[signs])).to_le_bytes()
}

#[inline(always)]
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[inline(always)]
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

#[inline(always)]
fn nibble(bytes: &[u8], idx: usize) -> u8 {
    bytes[idx / 2] >> (4 * (idx % 2)) & 15
}

#[inline(always)]
fn quarter_scale(d: f32, scale: u8) -> f32 {
    d * (0.5 + f32::from(scale)) * 0.25
}

/// Per 32 columns: four indices, then four sign fields and a scale in 32 bits.
#[inline(always)]
pub(super) fn iq2_xxs(block: &[u8; 66], codes: &mut Codes<256>) {
    let octets = codes.as_chunks_mut::<8>().0.as_chunks_mut::<4>().0;
    for (octets, part) in octets.iter_mut().zip(block[2..].chunks_exact(8)) {
        let fields = u32_at(part, 4);
        for (k, octet) in octets.iter_mut().enumerate() {
            let values = IQ2_XXS[usize::from(part[k])];
            *octet = signed(IQ2_ZERO, values, even_signs(fields >> (7 * k)));
        }
    }
}

#[inline(always)]
pub(super) fn iq2_xxs_params(block: &[u8; 66], params: &mut Params<'_, 8>) {
    let d = half(block);
    for g in 0..8 {
        params.centred(g, quarter_scale(d, block[9 + 8 * g] >> 4), IQ2_ZERO);
    }
}

/// Per eight columns 16 bits: nine of an index, seven of a sign field; a scale every 16 columns.
#[inline(always)]
pub(super) fn iq2_xs(block: &[u8; 74], codes: &mut Codes<256>) {
    for (k, octet) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let both = u16_at(block, 2 + 2 * k);
        let values = IQ2_XS[usize::from(both & 511)];
        *octet = signed(IQ2_ZERO, values, even_signs(u32::from(both >> 9)));
    }
}

#[inline(always)]
pub(super) fn iq2_xs_params(block: &[u8; 74], params: &mut Params<'_, 16>) {
    let d = half(block);
    for g in 0..16 {
        params.centred(g, quarter_scale(d, nibble(&block[66..], g)), IQ2_ZERO);
    }
}

/// Low bytes of indices, plain sign bits, the upper two bits of indices, scales.
#[inline(always)]
pub(super) fn iq2_s(block: &[u8; 82], codes: &mut Codes<256>) {
    for (k, octet) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let upper = usize::from(block[66 + k / 4] >> (2 * (k % 4)) & 3);
        let values = IQ2_S[usize::from(block[2 + k]) | upper << 8];
        *octet = signed(IQ2_ZERO, values, usize::from(block[34 + k]));
    }
}

#[inline(always)]
pub(super) fn iq2_s_params(block: &[u8; 82], params: &mut Params<'_, 16>) {
    let d = half(block);
    for g in 0..16 {
        params.centred(g, quarter_scale(d, nibble(&block[74..], g)), IQ2_ZERO);
    }
}

#[inline(always)]
fn two_quartets(first: u32, second: u32) -> u64 {
    u64::from(first) | u64::from(second) << 32
}

/// Indices of four columns each; then, per 32 columns, four sign fields and a scale in 32 bits.
#[inline(always)]
pub(super) fn iq3_xxs(block: &[u8; 98], codes: &mut Codes<256>) {
    let octets = codes.as_chunks_mut::<8>().0.as_chunks_mut::<4>().0;
    for (g, octets) in octets.iter_mut().enumerate() {
        let fields = u32_at(block, 66 + 4 * g);
        for (k, octet) in octets.iter_mut().enumerate() {
            let at = 2 + 8 * g + 2 * k;
            let entry = |at: usize| IQ3_XXS[usize::from(block[at])];
            let values = two_quartets(entry(at), entry(at + 1));
            *octet = signed(IQ3_XXS_ZERO, values, even_signs(fields >> (7 * k)));
        }
    }
}

#[inline(always)]
pub(super) fn iq3_xxs_params(block: &[u8; 98], params: &mut Params<'_, 8>) {
    let d = half(block);
    for g in 0..8 {
        let scale = block[69 + 4 * g] >> 4;
        params.centred(g, d * (0.5 + f32::from(scale)) * 0.5, IQ3_XXS_ZERO);
    }
}

/// Low bytes of indices, their ninth bits, plain sign bits, scales.
#[inline(always)]
pub(super) fn iq3_s(block: &[u8; 110], codes: &mut Codes<256>) {
    for (k, octet) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let entry = |idx: usize| {
            let ninth = usize::from(block[66 + idx / 8] >> (idx % 8) & 1);
            IQ3_S[usize::from(block[2 + idx]) | ninth << 8]
        };
        let values = two_quartets(entry(2 * k), entry(2 * k + 1));
        *octet = signed(IQ3_S_ZERO, values, usize::from(block[74 + k]));
    }
}

#[inline(always)]
pub(super) fn iq3_s_params(block: &[u8; 110], params: &mut Params<'_, 8>) {
    let d = half(block);
    for g in 0..8 {
        let scale = d * (1.0 + 2.0 * f32::from(nibble(&block[106..], g)));
        params.centred(g, scale, IQ3_S_ZERO);
    }
}

/// Eight columns of an IQ1 type: eight times the entry, one more or, shifted, one less.
#[inline(always)]
fn iq1_codes(idx: usize, is_shifted: bool) -> [u8; 8] {
    let more = if is_shifted { 0 } else { 0x0202_0202_0202_0202 };
    (IQ1[idx] + more).to_le_bytes()
}

/// Low bytes of indices; per 32 columns 16 bits: four times three upper bits, a scale, the shift.
#[inline(always)]
pub(super) fn iq1_s(block: &[u8; 50], codes: &mut Codes<256>) {
    let octets = codes.as_chunks_mut::<8>().0.as_chunks_mut::<4>().0;
    for (g, octets) in octets.iter_mut().enumerate() {
        let fields = u16_at(block, 34 + 2 * g);
        for (k, octet) in octets.iter_mut().enumerate() {
            let upper = usize::from(fields >> (3 * k) & 7);
            let idx = usize::from(block[2 + 4 * g + k]) | upper << 8;
            *octet = iq1_codes(idx, fields >> 15 == 1);
        }
    }
}

#[inline(always)]
pub(super) fn iq1_s_params(block: &[u8; 50], params: &mut Params<'_, 8>) {
    let d = half(block);
    for g in 0..8 {
        let scale = block[35 + 2 * g] >> 4 & 7;
        params.centred(g, d * f32::from(2 * scale + 1) * 0.125, IQ1_ZERO);
    }
}

/// Low bytes of indices; per eight columns a nibble: three upper bits and the shift; four words
/// whose upper nibbles are the scale of the block, and whose other bits are four scales each.
#[inline(always)]
pub(super) fn iq1_m(block: &[u8; 56], codes: &mut Codes<256>) {
    for (k, octet) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let field = nibble(&block[32..48], k);
        let idx = usize::from(block[k]) | usize::from(field & 7) << 8;
        *octet = iq1_codes(idx, field >> 3 == 1);
    }
}

#[inline(always)]
pub(super) fn iq1_m_params(block: &[u8; 56], params: &mut Params<'_, 16>) {
    let d = half_to_f32(iq1_m_scale(block));
    for g in 0..16 {
        let scale = u16_at(block, 48 + 2 * (g / 4)) >> (3 * (g % 4)) & 7;
        params.centred(g, d * f32::from(2 * scale + 1) * 0.125, IQ1_ZERO);
    }
}

/// The bits of the scale of a block of IQ1_M.
#[inline(always)]
pub(super) fn iq1_m_scale(block: &[u8; 56]) -> u16 {
    let upper = |idx: usize| u16_at(block, 48 + 2 * idx) >> 12;
    upper(0) | upper(1) << 4 | upper(2) << 8 | upper(3) << 12
}
