//! Blocks of ggml's types of 256 columns with two levels of scales.
#![no_main]

#[path = "shared/blocks.rs"]
mod blocks;

use libfuzzer_sys::fuzz_target;
use moeflux_core::quant::BlockType;

const TYPES: &[BlockType] = &[
    BlockType::Q2_K,
    BlockType::Q3_K,
    BlockType::Q4_K,
    BlockType::Q5_K,
    BlockType::Q6_K,
    BlockType::IQ4_XS,
];

fuzz_target!(|input: blocks::Input<'_>| blocks::check(TYPES, input));
