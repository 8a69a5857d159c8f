//! Blocks of ggml's types of 32 to 128 columns, and of ternary ones.
#![no_main]

#[path = "shared/blocks.rs"]
mod blocks;

use libfuzzer_sys::fuzz_target;
use moeflux_core::quant::BlockType;

const TYPES: &[BlockType] = &[
    BlockType::Q4_0,
    BlockType::Q4_1,
    BlockType::Q5_0,
    BlockType::Q5_1,
    BlockType::Q8_0,
    BlockType::IQ4_NL,
    BlockType::MXFP4,
    BlockType::NVFP4,
    BlockType::Q1_0,
    BlockType::Q2_0,
    BlockType::TQ1_0,
    BlockType::TQ2_0,
];

fuzz_target!(|input: blocks::Input<'_>| blocks::check(TYPES, input));
