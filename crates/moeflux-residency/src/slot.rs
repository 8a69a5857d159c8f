//! Slots and what is in them.

use std::sync::Arc;

use moeflux_core::Expert;

use crate::packing::Packing;

/// Memory of the device for one expert. Its length is that of the expert's [`Packing`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot<B> {
    /// The buffer that the slot is a part of.
    pub buffer: B,
    /// The slot's first byte in the buffer.
    pub at: usize,
}

/// Where an expert is on the device.
#[derive(Clone, Debug)]
pub struct LocatedExpert<B> {
    /// Its slot.
    pub slot: Slot<B>,
    /// Where its matrices are in the slot.
    pub packing: Arc<Packing>,
}

/// An expert in the host's memory, and how a slot stores it.
#[derive(Clone, Debug)]
pub struct PackedExpert {
    /// The expert.
    pub expert: Arc<Expert>,
    /// How a slot stores it.
    pub packing: Arc<Packing>,
}

/// When a step began: experts that were used since then are not evicted for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StepStart(pub(crate) u64);
