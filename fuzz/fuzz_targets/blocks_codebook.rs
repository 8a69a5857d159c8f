//! Blocks of ggml's types whose codes select entries of codebooks.
#![no_main]

#[path = "shared/blocks.rs"]
mod blocks;

use libfuzzer_sys::fuzz_target;
use moeflux_core::quant::BlockType;

const TYPES: &[BlockType] = &[
    BlockType::IQ2_XXS,
    BlockType::IQ2_XS,
    BlockType::IQ2_S,
    BlockType::IQ3_XXS,
    BlockType::IQ3_S,
    BlockType::IQ1_S,
    BlockType::IQ1_M,
];

fuzz_target!(|input: blocks::Input<'_>| blocks::check(TYPES, input));
