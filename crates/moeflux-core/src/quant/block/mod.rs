//! Blocks of integers with their scales in between: the weight types of ggml.
//!
//! A row is a sequence of blocks. Each holds the codes of its columns, packed, and the scales of its
//! groups; the types with 256 columns a block have a second level of integer scales. Every type
//! decodes to unsigned codes of at most 8 bits and, for each group, a scale and a bias: an element
//! is `scale * code + bias`. The product is exact in `f32` wherever the scales are finite, so that
//! rounding happens once.

mod codebooks;
mod parts;
mod planes;
mod small;
mod wide;

use serde::{Deserialize, Serialize};

use self::codebooks::Book;
use self::parts::{Codes, Params, half, half_to_f32};

pub use codebooks::Codebooks;

/// A weight type of ggml, by its name there.
#[expect(non_camel_case_types, missing_docs, reason = "the names of ggml's types")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum BlockType {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ2_XXS,
    IQ2_XS,
    IQ3_XXS,
    IQ1_S,
    IQ4_NL,
    IQ3_S,
    IQ2_S,
    IQ4_XS,
    IQ1_M,
    TQ1_0,
    TQ2_0,
    MXFP4,
    NVFP4,
    Q1_0,
    Q2_0,
}

/// What a type is, apart from where its bits lie.
struct Facts {
    block_type: BlockType,
    name: &'static str,
    /// The number in GGUF files.
    id: u32,
    /// Columns of a block.
    cols: usize,
    /// Bytes of a block.
    bytes: usize,
    /// Columns of the groups of products.
    group: usize,
}

const fn facts(
    block_type: BlockType,
    name: &'static str,
    id: u32,
    [cols, bytes, group]: [usize; 3],
) -> Facts {
    Facts { block_type, name, id, cols, bytes, group }
}

/// In the order of the enum.
const FACTS: [Facts; 25] = [
    facts(BlockType::Q4_0, "Q4_0", 2, [32, 18, 32]),
    facts(BlockType::Q4_1, "Q4_1", 3, [32, 20, 32]),
    facts(BlockType::Q5_0, "Q5_0", 6, [32, 22, 32]),
    facts(BlockType::Q5_1, "Q5_1", 7, [32, 24, 32]),
    facts(BlockType::Q8_0, "Q8_0", 8, [32, 34, 32]),
    facts(BlockType::Q2_K, "Q2_K", 10, [256, 84, 16]),
    facts(BlockType::Q3_K, "Q3_K", 11, [256, 110, 16]),
    facts(BlockType::Q4_K, "Q4_K", 12, [256, 144, 32]),
    facts(BlockType::Q5_K, "Q5_K", 13, [256, 176, 32]),
    facts(BlockType::Q6_K, "Q6_K", 14, [256, 210, 16]),
    facts(BlockType::IQ2_XXS, "IQ2_XXS", 16, [256, 66, 32]),
    facts(BlockType::IQ2_XS, "IQ2_XS", 17, [256, 74, 16]),
    facts(BlockType::IQ3_XXS, "IQ3_XXS", 18, [256, 98, 32]),
    facts(BlockType::IQ1_S, "IQ1_S", 19, [256, 50, 32]),
    facts(BlockType::IQ4_NL, "IQ4_NL", 20, [32, 18, 32]),
    facts(BlockType::IQ3_S, "IQ3_S", 21, [256, 110, 32]),
    facts(BlockType::IQ2_S, "IQ2_S", 22, [256, 82, 16]),
    facts(BlockType::IQ4_XS, "IQ4_XS", 23, [256, 136, 32]),
    facts(BlockType::IQ1_M, "IQ1_M", 29, [256, 56, 16]),
    facts(BlockType::TQ1_0, "TQ1_0", 34, [256, 54, 32]),
    facts(BlockType::TQ2_0, "TQ2_0", 35, [256, 66, 32]),
    facts(BlockType::MXFP4, "MXFP4", 39, [32, 17, 32]),
    facts(BlockType::NVFP4, "NVFP4", 40, [64, 36, 16]),
    facts(BlockType::Q1_0, "Q1_0", 41, [128, 18, 32]),
    facts(BlockType::Q2_0, "Q2_0", 42, [64, 18, 32]),
];

impl BlockType {
    /// All types, in the order of the enum.
    pub const ALL: [BlockType; 25] = {
        let mut all = [BlockType::Q4_0; 25];
        let mut i = 0;
        while i < all.len() {
            all[i] = FACTS[i].block_type;
            i += 1;
        }
        all
    };

    /// All types.
    pub fn all() -> impl Iterator<Item = BlockType> {
        Self::ALL.into_iter()
    }

    /// The type with this number in GGUF files.
    pub fn by_id(id: u32) -> Option<BlockType> {
        FACTS.iter().find(|facts| facts.id == id).map(|facts| facts.block_type)
    }

    /// The type with this name.
    pub fn by_name(name: &str) -> Option<BlockType> {
        FACTS.iter().find(|facts| facts.name == name).map(|facts| facts.block_type)
    }

    fn book(self) -> Option<Book> {
        Some(match self {
            BlockType::IQ2_XXS => Book::IQ2_XXS,
            BlockType::IQ2_XS => Book::IQ2_XS,
            BlockType::IQ2_S => Book::IQ2_S,
            BlockType::IQ3_XXS => Book::IQ3_XXS,
            BlockType::IQ3_S => Book::IQ3_S,
            BlockType::IQ1_S | BlockType::IQ1_M => Book::IQ1,
            _ => return None,
        })
    }

    const fn facts(self) -> &'static Facts {
        const ALL: &[Facts; 25] = &FACTS;
        &ALL[self as usize]
    }

    /// The number in GGUF files.
    pub fn id(self) -> u32 {
        self.facts().id
    }

    /// The name.
    pub fn name(self) -> &'static str {
        self.facts().name
    }

    /// Columns of a block.
    pub const fn block_cols(self) -> usize {
        self.facts().cols
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> usize {
        self.facts().bytes
    }

    /// Columns that share a scale and a bias in products: 16, or 32 where as many or more share
    /// one.
    pub const fn group_cols(self) -> usize {
        self.facts().group
    }

    /// Whether codes select entries of a codebook.
    pub fn has_codebook(self) -> bool {
        self.book().is_some()
    }

    /// The values of the codebook's entries without their signs, a byte a column: of IQ2 types eight
    /// columns an entry, of IQ3 types four, of IQ1 types eight columns of 0, 8 and 16. Empty for
    /// types without a codebook.
    pub fn codebook(self) -> Vec<u8> {
        self.book().map_or_else(Vec::new, |book| book.bytes())
    }

    /// Decodes whole blocks. `codes` gets one code a column; `scales` and `biases` get one value
    /// for each [`group_cols`](BlockType::group_cols) columns.
    ///
    /// # Panics
    /// If a slice has another length than the blocks require.
    #[inline(always)]
    pub fn decode(self, blocks: &[u8], codes: &mut [u8], scales: &mut [f32], biases: &mut [f32]) {
        self.decode_into(blocks, Whole { codes, scales, biases });
    }

    /// As [`decode`](BlockType::decode), scales and biases alone.
    ///
    /// # Panics
    /// If a slice has another length than the blocks require.
    #[inline(always)]
    pub fn decode_params(self, blocks: &[u8], scales: &mut [f32], biases: &mut [f32]) {
        self.decode_into(blocks, ParamsOnly { scales, biases });
    }

    /// As [`decode`](BlockType::decode), codes alone.
    ///
    /// # Panics
    /// If there are not as many codes as columns in the blocks.
    #[inline(always)]
    pub fn decode_codes(self, blocks: &[u8], codes: &mut [u8]) {
        self.decode_into(blocks, CodesOnly(codes));
    }

    #[inline(always)]
    fn decode_into(self, blocks: &[u8], out: impl Output) {
        match self {
            BlockType::Q4_0 => out.each(blocks, small::q4_0, small::q4_0_params),
            BlockType::Q4_1 => out.each(blocks, small::q4_1, small::q4_1_params),
            BlockType::Q5_0 => out.each(blocks, small::q5_0, small::q5_0_params),
            BlockType::Q5_1 => out.each(blocks, small::q5_1, small::q5_1_params),
            BlockType::Q8_0 => out.each(blocks, small::q8_0, small::q8_0_params),
            BlockType::Q2_K => out.each(blocks, wide::q2_k, wide::q2_k_params),
            BlockType::Q3_K => out.each(blocks, wide::q3_k, wide::q3_k_params),
            BlockType::Q4_K => out.each(blocks, wide::q4_k, wide::q4_k_params),
            BlockType::Q5_K => out.each(blocks, wide::q5_k, wide::q5_k_params),
            BlockType::Q6_K => out.each(blocks, wide::q6_k, wide::q6_k_params),
            BlockType::IQ2_XXS => out.each(blocks, codebooks::iq2_xxs, codebooks::iq2_xxs_params),
            BlockType::IQ2_XS => out.each(blocks, codebooks::iq2_xs, codebooks::iq2_xs_params),
            BlockType::IQ3_XXS => out.each(blocks, codebooks::iq3_xxs, codebooks::iq3_xxs_params),
            BlockType::IQ1_S => out.each(blocks, codebooks::iq1_s, codebooks::iq1_s_params),
            BlockType::IQ4_NL => out.each(blocks, small::iq4_nl, small::iq4_nl_params),
            BlockType::IQ3_S => out.each(blocks, codebooks::iq3_s, codebooks::iq3_s_params),
            BlockType::IQ2_S => out.each(blocks, codebooks::iq2_s, codebooks::iq2_s_params),
            BlockType::IQ4_XS => out.each(blocks, wide::iq4_xs, wide::iq4_xs_params),
            BlockType::IQ1_M => out.each(blocks, codebooks::iq1_m, codebooks::iq1_m_params),
            BlockType::TQ1_0 => out.each(blocks, small::tq1_0, small::tq1_0_params),
            BlockType::TQ2_0 => out.each(blocks, small::tq2_0, small::tq2_0_params),
            BlockType::MXFP4 => out.each(blocks, small::mxfp4, small::mxfp4_params),
            BlockType::NVFP4 => out.each(blocks, small::nvfp4, small::nvfp4_params),
            BlockType::Q1_0 => out.each(blocks, small::q1_0, small::q1_0_params),
            BlockType::Q2_0 => out.each(blocks, small::q2_0, small::q2_0_params),
        }
    }

    /// Where in a block its scales of type `f16` are. Those of MXFP4 and NVFP4 are not such, and
    /// that of IQ1_M is spread over several words.
    pub fn scale_offsets(self) -> &'static [usize] {
        match self {
            BlockType::MXFP4 | BlockType::NVFP4 | BlockType::IQ1_M => &[],
            BlockType::Q4_1 | BlockType::Q5_1 | BlockType::Q4_K | BlockType::Q5_K => &[0, 2],
            BlockType::Q2_K => &[80, 82],
            BlockType::Q3_K => &[108],
            BlockType::Q6_K => &[208],
            BlockType::TQ1_0 => &[52],
            BlockType::TQ2_0 => &[64],
            _ => &[0],
        }
    }

    /// Index of the first of some blocks whose scales are not all finite, and the stored scale.
    /// Every scale of NVFP4 is. Those of MXFP4 are powers of two; the largest give infinite elements.
    pub fn find_not_finite(self, blocks: &[u8]) -> Option<(usize, f32)> {
        /// The exponent of 2^123, whose product with the largest code, 24, is finite.
        const MAX_EXPONENT: u8 = 251;
        if self == BlockType::MXFP4 {
            let mut exponents = blocks.as_chunks::<17>().0.iter().map(|block| block[0]);
            let idx = exponents.position(|exponent| exponent > MAX_EXPONENT)?;
            return Some((idx, f32::INFINITY));
        }
        if self == BlockType::IQ1_M {
            let blocks = blocks.as_chunks::<56>().0;
            let scales = blocks.iter().map(|block| half_to_f32(codebooks::iq1_m_scale(block)));
            return scales.enumerate().find(|(_, scale)| !scale.is_finite());
        }
        let offsets = self.scale_offsets();
        blocks.chunks_exact(self.block_bytes()).enumerate().find_map(|(idx, block)| {
            let mut scales = offsets.iter().map(|at| half(&block[*at..]));
            scales.find(|scale| !scale.is_finite()).map(|scale| (idx, scale))
        })
    }
}

/// Where the parts of decoded blocks go.
trait Output: Sized {
    /// Decodes block after block.
    fn each<const BYTES: usize, const COLS: usize, const GROUPS: usize>(
        self,
        blocks: &[u8],
        codes_of: impl Fn(&[u8; BYTES], &mut Codes<COLS>),
        params_of: impl Fn(&[u8; BYTES], &mut Params<'_, GROUPS>),
    );
}

struct Whole<'a> {
    codes: &'a mut [u8],
    scales: &'a mut [f32],
    biases: &'a mut [f32],
}

struct CodesOnly<'a>(&'a mut [u8]);

struct ParamsOnly<'a> {
    scales: &'a mut [f32],
    biases: &'a mut [f32],
}

impl Output for Whole<'_> {
    #[inline(always)]
    fn each<const BYTES: usize, const COLS: usize, const GROUPS: usize>(
        self,
        blocks: &[u8],
        codes_of: impl Fn(&[u8; BYTES], &mut Codes<COLS>),
        params_of: impl Fn(&[u8; BYTES], &mut Params<'_, GROUPS>),
    ) {
        let (blocks, rest) = blocks.as_chunks::<BYTES>();
        let (codes, scales) = (self.codes.as_chunks_mut::<COLS>().0, self.scales.as_chunks_mut().0);
        let biases = self.biases.as_chunks_mut().0;
        let n = blocks.len();
        assert!(rest.is_empty() && codes.len() == n, "whole blocks");
        assert!(scales.len() == n && biases.len() == n, "a scale and a bias for each group");
        let outputs = codes.iter_mut().zip(scales).zip(biases);
        for (block, ((codes, scales), biases)) in blocks.iter().zip(outputs) {
            codes_of(block, codes);
            params_of(block, &mut Params { scales, biases });
        }
    }
}

impl Output for CodesOnly<'_> {
    #[inline(always)]
    fn each<const BYTES: usize, const COLS: usize, const GROUPS: usize>(
        self,
        blocks: &[u8],
        codes_of: impl Fn(&[u8; BYTES], &mut Codes<COLS>),
        _params_of: impl Fn(&[u8; BYTES], &mut Params<'_, GROUPS>),
    ) {
        let (blocks, rest) = blocks.as_chunks::<BYTES>();
        let codes = self.0.as_chunks_mut::<COLS>().0;
        assert!(rest.is_empty() && codes.len() == blocks.len(), "whole blocks");
        blocks.iter().zip(codes).for_each(|(block, codes)| codes_of(block, codes));
    }
}

impl Output for ParamsOnly<'_> {
    #[inline(always)]
    fn each<const BYTES: usize, const COLS: usize, const GROUPS: usize>(
        self,
        blocks: &[u8],
        _codes_of: impl Fn(&[u8; BYTES], &mut Codes<COLS>),
        params_of: impl Fn(&[u8; BYTES], &mut Params<'_, GROUPS>),
    ) {
        let (blocks, rest) = blocks.as_chunks::<BYTES>();
        let (scales, biases) = (self.scales.as_chunks_mut().0, self.biases.as_chunks_mut().0);
        let n = blocks.len();
        assert!(rest.is_empty(), "whole blocks");
        assert!(scales.len() == n && biases.len() == n, "a scale and a bias for each group");
        for (block, (scales, biases)) in blocks.iter().zip(scales.iter_mut().zip(biases)) {
            params_of(block, &mut Params { scales, biases });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_in_the_order_of_the_enum() {
        for (i, block_type) in BlockType::all().enumerate() {
            assert_eq!(block_type as usize, i, "{block_type:?}");
            assert_eq!(BlockType::by_id(block_type.id()), Some(block_type));
            assert_eq!(BlockType::by_name(&format!("{block_type:?}")), Some(block_type));
        }
    }

    #[test]
    fn halves_are_those_of_the_library() {
        for bits in 0..=u16::MAX {
            let (got, want) = (half_to_f32(bits), half::f16::from_bits(bits).to_f32());
            assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{bits:x}");
        }
    }
}
