//! The texts by which kernels read blocks of ggml: a file of `shaders/blocks/` for each type, and
//! what several types have in common.

use moeflux_core::quant::BlockType;

use crate::kernels::kernel::NamedConstants;

const SHARED: &str = include_str!("../shaders/include/blocks.wgsl");

/// A type's texts, and how many times sixteen columns a lane takes of it at once.
struct BlockTexts {
    texts: &'static [&'static str],
    halves: u32,
}

macro_rules! texts {
    ($halves:literal $(, $name:literal)+) => {
        BlockTexts {
            texts: &[$(include_str!(concat!("../shaders/blocks/", $name, ".wgsl"))),+],
            halves: $halves,
        }
    };
}

fn texts_of(block_type: BlockType) -> BlockTexts {
    match block_type {
        BlockType::Q4_0 => texts!(2, "q4_0", "side_by_side", "unit_pairs"),
        BlockType::Q4_1 => texts!(2, "q4_1", "side_by_side", "unit_pairs"),
        BlockType::Q5_0 => texts!(2, "q5_0", "fifth_bits", "side_by_side", "unit_pairs"),
        BlockType::Q5_1 => texts!(2, "q5_1", "fifth_bits", "side_by_side", "unit_pairs"),
        BlockType::Q8_0 => texts!(1, "q8_0", "unit_pairs"),
        BlockType::Q2_K => texts!(2, "q2_k", "two_bits", "two_bits_units", "unit_pairs"),
        BlockType::Q3_K => texts!(2, "q3_k", "two_bits", "two_bits_units", "unit_pairs"),
        BlockType::Q4_K => texts!(2, "q4_k", "k_scales"),
        BlockType::Q5_K => texts!(2, "q5_k", "k_scales"),
        BlockType::Q6_K => texts!(2, "q6_k", "two_bits", "unit_pairs"),
        BlockType::IQ2_XXS => {
            texts!(2, "iq2_xxs", "signs", "signed_octets", "side_by_side", "unit_pairs")
        }
        BlockType::IQ2_XS => {
            texts!(2, "iq2_xs", "signs", "signed_octets", "side_by_side", "unit_pairs")
        }
        BlockType::IQ2_S => {
            texts!(2, "iq2_s", "signs", "signed_octets", "side_by_side", "unit_pairs")
        }
        BlockType::IQ3_XXS => {
            texts!(2, "iq3_xxs", "signs", "signed_quartets", "side_by_side", "unit_pairs")
        }
        BlockType::IQ3_S => {
            texts!(2, "iq3_s", "signs", "signed_quartets", "side_by_side", "unit_pairs")
        }
        BlockType::IQ1_S => texts!(2, "iq1_s", "iq1_octets", "side_by_side", "unit_pairs"),
        BlockType::IQ1_M => texts!(2, "iq1_m", "iq1_octets", "side_by_side", "unit_pairs"),
        BlockType::IQ4_NL => texts!(2, "iq4_nl", "iq4_levels", "side_by_side", "unit_pairs"),
        BlockType::IQ4_XS => texts!(2, "iq4_xs", "iq4_levels", "side_by_side", "unit_pairs"),
        BlockType::TQ1_0 => texts!(2, "tq1_0", "units", "side_by_side", "unit_pairs"),
        BlockType::TQ2_0 => texts!(2, "tq2_0", "two_bits", "two_bits_units", "unit_pairs"),
        BlockType::MXFP4 => texts!(2, "mxfp4", "e2m1_codes", "side_by_side", "unit_pairs"),
        BlockType::NVFP4 => texts!(2, "nvfp4", "e2m1_codes", "units", "side_by_side", "unit_pairs"),
        BlockType::Q1_0 => texts!(2, "q1_0", "side_by_side", "unit_pairs"),
        BlockType::Q2_0 => texts!(2, "q2_0", "side_by_side", "unit_pairs"),
    }
}

/// What several types have in common, and what is this type's own.
pub(super) fn text(bits: u32) -> String {
    [&[SHARED], texts_of(block_type(bits)).texts].concat().concat()
}

/// Times sixteen columns that a lane takes at once.
pub(crate) fn unit_halves(block_type: BlockType) -> u32 {
    texts_of(block_type).halves
}

/// The type of a number, which is the constant `BITS`.
pub(super) fn block_type(bits: u32) -> BlockType {
    BlockType::by_id(bits).expect("the number of a type")
}

/// Words of a codebook that workgroups keep in their memory at most.
const MOST_STAGED: usize = 2048;

/// Words that workgroups of the kernel for few rows keep in their memory: a codebook, or levels for
/// each of four bytes.
pub(crate) fn staged_words(block_type: BlockType) -> usize {
    match block_type {
        BlockType::IQ4_NL | BlockType::IQ4_XS => 4 * 16,
        _ => Some(block_type.codebook().len() / 4).filter(|n| *n <= MOST_STAGED).unwrap_or(0),
    }
}

/// The constants of a type, in the kernel for few rows or in another one.
pub(super) fn constants(bits: u32, is_matvec: bool) -> NamedConstants {
    let of = block_type(bits);
    let number = |number: usize| u32::try_from(number).expect("blocks are small");
    let staged = if is_matvec { staged_words(of) } else { 0 };
    vec![
        ("STAGED", number(staged)),
        ("NIBBLES", u32::from(are_nibbles(of))),
        // What codes are more than what they stand for.
        ("ZERO", zero(of)),
        ("GROUP_COLS", number(of.group_cols())),
        ("BLOCK_COLS", number(of.block_cols())),
        ("BLOCK_BYTES", number(of.block_bytes())),
        ("HAS_CODEBOOK", u32::from(of.has_codebook())),
    ]
}

/// Whether codes are halves of bytes as they lie in the block.
fn are_nibbles(block_type: BlockType) -> bool {
    matches!(block_type, BlockType::Q4_0 | BlockType::Q4_1 | BlockType::Q4_K)
}

/// What the codes of a type are more than what they stand for, as kernels have them.
fn zero(block_type: BlockType) -> u32 {
    match block_type {
        BlockType::Q4_0 => 8,
        BlockType::Q5_0 => 16,
        BlockType::Q3_K => 4,
        BlockType::Q6_K => 32,
        BlockType::IQ1_S | BlockType::IQ1_M => 9,
        BlockType::TQ1_0 | BlockType::TQ2_0 | BlockType::Q1_0 | BlockType::Q2_0 => 1,
        _ => 0,
    }
}

/// Whether elements of a type are not only their code less [`zero`] times its scale.
pub(crate) fn has_biases(block_type: BlockType) -> bool {
    matches!(
        block_type,
        BlockType::Q4_1 | BlockType::Q5_1 | BlockType::Q2_K | BlockType::Q4_K | BlockType::Q5_K
    )
}

/// The largest magnitude of the codes that kernels make of a type.
pub(crate) fn largest_code(block_type: BlockType) -> u32 {
    match block_type {
        BlockType::Q8_0 => 128,
        BlockType::IQ4_NL | BlockType::IQ4_XS => 127,
        BlockType::Q6_K => 63,
        BlockType::IQ3_XXS => 62,
        BlockType::IQ2_XXS | BlockType::IQ2_XS | BlockType::IQ2_S => 43,
        BlockType::Q5_0 | BlockType::Q5_1 | BlockType::Q5_K => 31,
        BlockType::IQ1_S | BlockType::IQ1_M => 18,
        BlockType::Q4_0 | BlockType::Q4_1 | BlockType::Q4_K | BlockType::IQ3_S => 15,
        BlockType::MXFP4 | BlockType::NVFP4 => 12,
        BlockType::Q3_K => 7,
        BlockType::Q2_K
        | BlockType::TQ1_0
        | BlockType::TQ2_0
        | BlockType::Q1_0
        | BlockType::Q2_0 => 3,
    }
}

/// All texts, for a fingerprint.
pub(super) fn all_texts() -> impl Iterator<Item = &'static str> {
    let of_types =
        BlockType::all().flat_map(|block_type| texts_of(block_type).texts.iter().copied());
    std::iter::once(SHARED).chain(of_types)
}
