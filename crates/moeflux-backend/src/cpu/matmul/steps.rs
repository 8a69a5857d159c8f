//! Blocks of ggml by 256 columns, the widest block.

use moeflux_core::quant::BlockType;

/// Columns of a step: one block of the widest types.
pub(super) const STEP_COLS: usize = 256;

/// Groups of a step, at most.
pub(super) const GROUPS_OF_STEP: usize = 16;

/// The type of this number.
pub(super) const fn of(number: u8) -> BlockType {
    BlockType::ALL[number as usize]
}

/// Blocks of a step.
pub(super) const fn step_blocks(number: u8) -> usize {
    STEP_COLS / of(number).block_cols()
}

/// Bytes of a step.
pub(super) const fn step_bytes(number: u8) -> usize {
    step_blocks(number) * of(number).block_bytes()
}

/// Groups of a step.
pub(super) const fn step_groups(number: u8) -> usize {
    STEP_COLS / of(number).group_cols()
}
