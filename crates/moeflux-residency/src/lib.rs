//! Which experts are in the memory of a device, for every device that has memory of its own.
//!
//! [`ExpertSlots`] has the slots. It uploads an expert that an op needs, evicts the least recently
//! used one where no slot is free, loads whole layers that stay, and reports what changed. Where
//! only a part of the experts fits and kernels fetch the others by themselves, [`Admission`] is the
//! rule by which they choose what leaves. [`Staging`] has threads write experts into buffers that
//! the device copies from.
//!
//! A device implements [`SlotMemory`] and [`LayerMemory`] for its memory, and [`StagingMemory`] with
//! [`StagingBuffer`] for buffers that the host writes. It allocates, copies, and says when a copy is
//! done; what is copied where, and what leaves for it, is decided here.
//!
//! Invariant: an expert that was used since a step began is not evicted in that step. A slot that
//! gets another expert may still be read by commands recorded before: devices copy in order with
//! their commands.

#![forbid(unsafe_code)]

mod admission;
mod budget;
mod device;
mod layer;
mod layers;
mod packing;
mod pool;
mod share;
mod slot;
mod slots;
mod staging;
#[cfg(test)]
mod tests;
mod writers;

pub use admission::{Admission, Admitted, MAX_ADMITTED_ROWS, MAX_CHOICES, decay};
pub use device::{LayerMemory, Returned, SlotMemory, StagingBuffer, StagingMemory};
pub use layer::{HostExperts, ResidentLayer};
pub use packing::{MatrixBytes, MatrixPart, Packing, Piece};
pub use slot::{LocatedExpert, PackedExpert, Slot, StepStart};
pub use slots::ExpertSlots;
pub use staging::{BUFFER_BYTES, Staged, Staging};
