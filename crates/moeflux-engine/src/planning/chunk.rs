//! How many rows of a prompt a step may take.

use super::ModelFacts;
use super::facts::ScratchFacts;
use crate::device::DeviceLimits;

/// Most rows where experts are read from the drive, or fetched to a device: once a chunk.
pub(super) const WIDE: usize = 2048;

/// Most rows where a device has all experts in memory of its own: with more rows an expert it computes
/// more at a time. On an H200 4,096 rows at once take 13 % less time than 2,048 twice
/// (Kimi-Linear, Nemotron 3 Nano).
pub(super) const WIDEST: usize = 4096;

/// Part of the free memory that the activations of such a chunk may take.
const SHARE: u64 = 5;

/// As many rows, up to `most`, as a share of `free` bytes holds the activations of, and never fewer
/// than `least`.
pub(super) fn wide_rows(scratch: &ScratchFacts, least: usize, most: usize, free: u64) -> usize {
    let wider = (least..=most).step_by(128);
    let held = wider.take_while(|rows| scratch.bytes(*rows) <= free / SHARE);
    held.last().unwrap_or(least)
}

/// Most rows of a batch that a device's buffers hold.
pub(super) fn max_rows(limits: &DeviceLimits, model: &ModelFacts) -> usize {
    let by_width = limits.max_buffer_bytes / model.scratch.widest_row.max(1);
    let by_choice = limits.max_chosen / model.top_k.max(1);
    usize::try_from(by_width).unwrap_or(usize::MAX).min(by_choice).max(1)
}
