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
        BlockType::Q4_0 => texts!(2, "q4_0"),
        BlockType::Q4_1 => texts!(2, "q4_1", "units"),
        BlockType::Q5_0 => texts!(2, "q5_0", "units"),
        BlockType::Q5_1 => texts!(2, "q5_1", "units"),
        BlockType::Q8_0 => texts!(1, "q8_0"),
        BlockType::Q2_K => texts!(2, "q2_k", "two_bits", "units"),
        BlockType::Q3_K => texts!(2, "q3_k", "two_bits", "units"),
        BlockType::Q4_K => texts!(2, "q4_k", "k_scales"),
        BlockType::Q5_K => texts!(2, "q5_k", "k_scales"),
        BlockType::Q6_K => texts!(2, "q6_k", "two_bits"),
        BlockType::IQ2_XXS => texts!(2, "iq2_xxs", "signs", "signed_octets", "units"),
        BlockType::IQ2_XS => texts!(2, "iq2_xs", "signs", "signed_octets", "units"),
        BlockType::IQ2_S => texts!(2, "iq2_s", "signs", "signed_octets", "units"),
        BlockType::IQ3_XXS => texts!(2, "iq3_xxs", "signs", "units"),
        BlockType::IQ3_S => texts!(2, "iq3_s", "signs", "units"),
        BlockType::IQ1_S => texts!(2, "iq1_s", "units"),
        BlockType::IQ1_M => texts!(2, "iq1_m", "units"),
        BlockType::IQ4_NL => texts!(2, "iq4_nl", "iq4_levels", "units"),
        BlockType::IQ4_XS => texts!(2, "iq4_xs", "iq4_levels", "units"),
        BlockType::TQ1_0 => texts!(2, "tq1_0", "units"),
        BlockType::TQ2_0 => texts!(2, "tq2_0", "two_bits", "units"),
        BlockType::MXFP4 => texts!(2, "mxfp4", "e2m1_codes", "units"),
        BlockType::NVFP4 => texts!(2, "nvfp4", "e2m1_codes", "units"),
        BlockType::Q1_0 => texts!(2, "q1_0", "units"),
        BlockType::Q2_0 => texts!(2, "q2_0", "units"),
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

/// The constants of a type.
pub(super) fn constants(bits: u32) -> NamedConstants {
    let of = block_type(bits);
    let number = |it: usize| u32::try_from(it).expect("blocks are small");
    vec![
        ("BLOCK_COLS", number(of.block_cols())),
        ("BLOCK_BYTES", number(of.block_bytes())),
        ("HAS_CODEBOOK", u32::from(of.has_codebook())),
    ]
}

/// All texts, for a fingerprint.
pub(super) fn all_texts() -> impl Iterator<Item = &'static str> {
    let of_types = BlockType::all().flat_map(|it| texts_of(it).texts.iter().copied());
    std::iter::once(SHARED).chain(of_types)
}
