//! Scales and biases of eight rows of blocks, with the rows as lanes, straight from the blocks.

use std::arch::x86_64::*;

use moeflux_core::quant::BlockType;

use super::unpack_blocks::{GROUPS_OF_STEP, of, step_bytes};
use super::vector::{ROWS, load_16, load_floats, transpose};

/// Scales and biases of the groups of 256 columns; lanes are rows. Types with groups of 32 columns
/// use the first eight.
pub(super) struct StepParams {
    pub(super) scale: [__m256; GROUPS_OF_STEP],
    pub(super) bias: [__m256; GROUPS_OF_STEP],
}

/// Eight rows of blocks, one after the other.
#[derive(Clone, Copy)]
pub(super) struct BlockRows<'a> {
    /// Invariant: eight times `row_bytes`.
    pub(super) bytes: &'a [u8],
    pub(super) row_bytes: usize,
}

impl<'a> BlockRows<'a> {
    pub(super) fn new(bytes: &'a [u8], row_bytes: usize) -> BlockRows<'a> {
        assert_eq!(bytes.len(), ROWS * row_bytes, "eight rows");
        BlockRows { bytes, row_bytes }
    }

    /// A row from its byte `at` on.
    #[inline]
    pub(super) fn row(self, row: usize, at: usize) -> &'a [u8] {
        &self.bytes[row * self.row_bytes..(row + 1) * self.row_bytes][at..]
    }

    /// The four bytes at `at` of each row.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn word(self, at: usize) -> __m256i {
        let word = |row| {
            let bytes = self.row(row, at).first_chunk().expect("four bytes of each row");
            i32::from_le_bytes(*bytes)
        };
        let (a, b, c, d) = (word(0), word(1), word(2), word(3));
        _mm256_setr_epi32(a, b, c, d, word(4), word(5), word(6), word(7))
    }

    /// The sixteen bytes at `at` of each row, as words.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn words(self, at: usize) -> [__m256i; 4] {
        // Rows `r` and `r + 4` go through the same steps, in the halves of a vector.
        let both =
            |r: usize| _mm256_set_m128i(load_16(self.row(r + 4, at)), load_16(self.row(r, at)));
        let (a, b, c, d) = (both(0), both(1), both(2), both(3));
        let (ab_low, ab_high) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
        let (cd_low, cd_high) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
        [
            _mm256_unpacklo_epi64(ab_low, cd_low),
            _mm256_unpackhi_epi64(ab_low, cd_low),
            _mm256_unpacklo_epi64(ab_high, cd_high),
            _mm256_unpackhi_epi64(ab_high, cd_high),
        ]
    }
}

/// The parameters of the `step`-th 256 columns of each row.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn step_params<const TYPE: u8>(rows: BlockRows<'_>, step: usize, out: &mut StepParams) {
    let at = step * const { step_bytes(TYPE) };
    match const { of(TYPE) } {
        BlockType::Q4_0 => out.centred_halves::<18>(rows, at, 8.0),
        BlockType::IQ4_NL => out.centred_halves::<18>(rows, at, 127.0),
        BlockType::Q5_0 => out.centred_halves::<22>(rows, at, 16.0),
        BlockType::Q8_0 => out.centred_halves::<34>(rows, at, 128.0),
        BlockType::Q4_1 => out.halves::<20>(rows, at),
        BlockType::Q5_1 => out.halves::<24>(rows, at),
        BlockType::Q4_K | BlockType::Q5_K => out.scales_and_mins(rows, at),
        BlockType::Q6_K => out.q6_k(rows, at),
        BlockType::IQ4_XS => out.iq4_xs(rows, at),
        _ => out.decoded::<TYPE>(rows, at),
    }
}

/// The first two bytes of eight blocks of `BYTES`.
#[inline]
#[target_feature(enable = "avx2")]
fn first_halves<const BYTES: usize>(blocks: &[u8]) -> __m128i {
    // With a length known here, no load below needs a check.
    let blocks = &blocks[..8 * BYTES];
    let two = |i: usize| {
        _mm_unpacklo_epi16(load_16(&blocks[i * BYTES..]), load_16(&blocks[(i + 1) * BYTES..]))
    };
    let (a, b) = (_mm_unpacklo_epi32(two(0), two(2)), _mm_unpacklo_epi32(two(4), two(6)));
    _mm_unpacklo_epi64(a, b)
}

/// The first four bytes of eight blocks of `BYTES`.
#[inline]
#[target_feature(enable = "avx2")]
fn first_words<const BYTES: usize>(blocks: &[u8]) -> __m256i {
    let blocks = &blocks[..8 * BYTES];
    let two = |i: usize| {
        _mm_unpacklo_epi32(load_16(&blocks[i * BYTES..]), load_16(&blocks[(i + 1) * BYTES..]))
    };
    let (a, b) = (_mm_unpacklo_epi64(two(0), two(2)), _mm_unpacklo_epi64(two(4), two(6)));
    _mm256_set_m128i(b, a)
}

/// The two `f16` of each lane.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn f16_pair(words: __m256i) -> (__m256, __m256) {
    let low = _mm256_and_si256(words, _mm256_set1_epi32(0xffff));
    let packed = _mm256_packus_epi32(low, _mm256_srli_epi32::<16>(words));
    // Packing takes 128-bit lanes in turns.
    let ordered = _mm256_permute4x64_epi64::<0b11_01_10_00>(packed);
    let second = _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(ordered));
    (_mm256_cvtph_ps(_mm256_castsi256_si128(ordered)), second)
}

/// The bytes of a word, the lowest first.
#[inline]
#[target_feature(enable = "avx2")]
fn bytes(words: __m256i) -> [__m256; 4] {
    let byte = _mm256_set1_epi32(255);
    [
        _mm256_cvtepi32_ps(_mm256_and_si256(words, byte)),
        _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32::<8>(words), byte)),
        _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32::<16>(words), byte)),
        _mm256_cvtepi32_ps(_mm256_srli_epi32::<24>(words)),
    ]
}

impl StepParams {
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn zero() -> StepParams {
        let zero = [_mm256_setzero_ps(); GROUPS_OF_STEP];
        StepParams { scale: zero, bias: zero }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn centred(&mut self, group: usize, scale: __m256, zero: f32) {
        self.scale[group] = scale;
        self.bias[group] = _mm256_mul_ps(scale, _mm256_set1_ps(-zero));
    }

    /// Eight blocks of `BYTES` that begin with a scale; the codes of zeros are `zero`.
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    fn centred_halves<const BYTES: usize>(&mut self, rows: BlockRows<'_>, at: usize, zero: f32) {
        let mut scales = [_mm256_setzero_ps(); ROWS];
        for (r, scales) in scales.iter_mut().enumerate() {
            *scales = _mm256_cvtph_ps(first_halves::<BYTES>(rows.row(r, at)));
        }
        for (g, scale) in transpose(scales).into_iter().enumerate() {
            self.centred(g, scale, zero);
        }
    }

    /// Eight blocks of `BYTES` that begin with a scale and a bias.
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    fn halves<const BYTES: usize>(&mut self, rows: BlockRows<'_>, at: usize) {
        let zero = [_mm256_setzero_ps(); ROWS];
        let (mut scales, mut biases) = (zero, zero);
        for r in 0..ROWS {
            (scales[r], biases[r]) = f16_pair(first_words::<BYTES>(rows.row(r, at)));
        }
        self.scale[..ROWS].copy_from_slice(&transpose(scales));
        self.bias[..ROWS].copy_from_slice(&transpose(biases));
    }

    /// By the definition of the type, a row after the other.
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    fn decoded<const TYPE: u8>(&mut self, rows: BlockRows<'_>, at: usize) {
        let n_groups = const { 256 / of(TYPE).group_cols() };
        let mut scales = [[[0.0; ROWS]; GROUPS_OF_STEP / ROWS]; ROWS];
        let mut biases = scales;
        for r in 0..ROWS {
            let blocks = &rows.row(r, at)[..const { step_bytes(TYPE) }];
            let scales = &mut scales[r].as_flattened_mut()[..n_groups];
            of(TYPE).decode_params(blocks, scales, &mut biases[r].as_flattened_mut()[..n_groups]);
        }
        for first in 0..n_groups / ROWS {
            for (stored, out) in [(&scales, &mut self.scale), (&biases, &mut self.bias)] {
                let mut tile = [_mm256_setzero_ps(); ROWS];
                for r in 0..ROWS {
                    tile[r] = load_floats(&stored[r][first]);
                }
                out[first * ROWS..][..ROWS].copy_from_slice(&transpose(tile));
            }
        }
    }

    /// Eight scales and eight minima of six bits each, after their factors.
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    fn scales_and_mins(&mut self, rows: BlockRows<'_>, at: usize) {
        let [factors, scales, mins, lower] = rows.words(at);
        let (d, min) = f16_pair(factors);
        let min = _mm256_sub_ps(_mm256_setzero_ps(), min);
        let six = _mm256_set1_epi32(0x3f3f_3f3f);
        let (low_four, high_two) = (_mm256_set1_epi32(0x0f0f_0f0f), _mm256_set1_epi32(0x3030_3030));
        let second = |lower: __m256i, upper: __m256i| {
            let upper = _mm256_and_si256(_mm256_srli_epi32::<2>(upper), high_two);
            _mm256_or_si256(_mm256_and_si256(lower, low_four), upper)
        };
        let scales = [_mm256_and_si256(scales, six), second(lower, scales)];
        let mins = [_mm256_and_si256(mins, six), second(_mm256_srli_epi32::<4>(lower), mins)];
        for half in 0..2 {
            for (i, number) in bytes(scales[half]).into_iter().enumerate() {
                self.scale[4 * half + i] = _mm256_mul_ps(number, d);
            }
            for (i, number) in bytes(mins[half]).into_iter().enumerate() {
                self.bias[4 * half + i] = _mm256_mul_ps(number, min);
            }
        }
    }

    /// Sixteen signed bytes, then their factor.
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    fn q6_k(&mut self, rows: BlockRows<'_>, at: usize) {
        let (_, d) = f16_pair(rows.word(at + 206));
        for (i, words) in rows.words(at + 192).into_iter().enumerate() {
            let signed = [
                _mm256_srai_epi32::<24>(_mm256_slli_epi32::<24>(words)),
                _mm256_srai_epi32::<24>(_mm256_slli_epi32::<16>(words)),
                _mm256_srai_epi32::<24>(_mm256_slli_epi32::<8>(words)),
                _mm256_srai_epi32::<24>(words),
            ];
            for (k, number) in signed.into_iter().enumerate() {
                self.centred(4 * i + k, _mm256_mul_ps(_mm256_cvtepi32_ps(number), d), 32.0);
            }
        }
    }

    /// A factor, eight times two upper bits, eight nibbles.
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    fn iq4_xs(&mut self, rows: BlockRows<'_>, at: usize) {
        let (first, mut low) = (rows.word(at), rows.word(at + 4));
        let (d, _) = f16_pair(first);
        let mut upper = _mm256_srli_epi32::<16>(first);
        for g in 0..8 {
            let high = _mm256_and_si256(upper, _mm256_set1_epi32(3));
            let nibble = _mm256_and_si256(low, _mm256_set1_epi32(15));
            let number = _mm256_or_si256(nibble, _mm256_slli_epi32::<4>(high));
            let number = _mm256_sub_epi32(number, _mm256_set1_epi32(32));
            self.centred(g, _mm256_mul_ps(d, _mm256_cvtepi32_ps(number)), 127.0);
            (upper, low) = (_mm256_srli_epi32::<2>(upper), _mm256_srli_epi32::<4>(low));
        }
    }
}
