//! Blocks of ggml by 256 columns, the widest block.

use moeflux_core::quant::BlockType;

/// Columns of a step: one block of the widest types.
pub(super) const STEP_COLS: usize = 256;

/// Lines of a step.
pub(super) const STEP_LINES: usize = STEP_COLS / 64;

/// The type of this number.
pub(super) const fn of(number: u8) -> BlockType {
    BlockType::ALL[number as usize]
}

/// Bytes of 256 columns.
pub(super) const fn step_bytes(number: u8) -> usize {
    let block_type = of(number);
    STEP_COLS / block_type.block_cols() * block_type.block_bytes()
}
