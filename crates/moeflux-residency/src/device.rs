//! What a device does for residency: it allocates, copies, and says when a copy is done.

use std::fmt;
use std::sync::Arc;

use moeflux_core::{Expert, ExpertLayout};

use crate::layer::ResidentLayer;
use crate::packing::{Packing, Piece};
use crate::slot::Slot;

/// Memory of a device for slots.
pub trait SlotMemory {
    /// A buffer on the device. Clones are the same buffer, and equal.
    type Buffer: Clone + fmt::Debug + PartialEq;

    /// Bytes of the largest buffer that kernels see as a whole.
    fn max_buffer_bytes(&self) -> u64;
    /// Allocates a buffer; `None` where there is no memory.
    fn try_allocate(&self, bytes: u64) -> Option<Self::Buffer>;
    /// Allocates a buffer that the op which runs cannot do without: where there is no memory, the
    /// device's next read-back fails too.
    fn allocate_or_report(&mut self, bytes: u64) -> Option<Self::Buffer>;
    /// Frees a buffer that no command uses, at once.
    fn free_unused(&self, buffer: Self::Buffer);
    /// Frees a buffer when the commands that use it are done.
    fn free_after_use(&mut self, buffer: &Self::Buffer);
    /// How slots store experts of a layout.
    fn pack(&self, layout: &Arc<ExpertLayout>) -> Packing;
    /// Copies an expert into a slot, in order with the device's commands: those recorded before read
    /// what was there before. Returns false where that failed, which the next read-back reports.
    fn upload(
        &mut self,
        expert: &Arc<Expert>,
        packing: &Arc<Packing>,
        slot: &Slot<Self::Buffer>,
    ) -> bool;
    /// Holds an expert until the commands recorded so far are done.
    fn retain(&mut self, expert: &Arc<Expert>);
}

/// Memory of a device for layers whose experts are resident, and which it routes by itself.
pub trait LayerMemory: SlotMemory {
    /// The weights of a shared expert on the device.
    type SharedExpert: fmt::Debug;
    /// What kernels read to find the experts of a layer.
    type Tables: fmt::Debug;

    /// Whether kernels fetch experts from the host's memory by themselves, so that a layer may be
    /// resident in part.
    fn fetches_missing(&self) -> bool;
    /// Whether a shared expert is stored as a slot stores experts, so that a copy of it can be next
    /// to them.
    fn is_stored_alike(&self, shared: &Self::SharedExpert, packing: &Packing) -> bool;
    /// Copies a shared expert into a slot.
    fn copy_shared(
        &mut self,
        shared: &Self::SharedExpert,
        packing: &Packing,
        slot: &Slot<Self::Buffer>,
    );
    /// Makes the tables of a layer whose slots are filled. Returns `None` where there is no memory
    /// for them, or kernels cannot fetch an expert that is not resident.
    fn build_tables(
        &mut self,
        layer: &ResidentLayer<Self::Buffer, Self::Tables>,
    ) -> Option<Self::Tables>;
    /// Frees the tables of a layer when the commands that use them are done.
    fn free_tables(&mut self, tables: &Self::Tables);
}

/// A buffer that the host writes and the device copies from. Clones are the same buffer.
pub trait StagingBuffer: Clone + fmt::Debug + Send + 'static {
    /// Bytes of the buffer.
    fn bytes(&self) -> u64;
    /// Writes a piece of an expert that begins at byte `at` of the buffer, as a slot stores it.
    /// Threads write distinct pieces at the same time.
    ///
    /// # Errors
    /// If the host has no access to the memory: the device is lost.
    fn write(
        &self,
        at: u64,
        expert: &Expert,
        packing: &Packing,
        piece: &Piece,
    ) -> Result<(), String>;
}

/// A staging buffer that the device has done with.
#[derive(Debug)]
pub struct Returned<B> {
    /// The buffer.
    pub buffer: B,
    /// Whether the host may write it again; false on a lost device.
    pub is_writable: bool,
}

/// Buffers that belong to the host, which writes them, or to the device, which copies from them.
pub trait StagingMemory {
    /// One of the buffers.
    type Buffer: StagingBuffer;
    /// A moment in the device's stream of commands.
    type Fence: Clone + fmt::Debug;

    /// Allocates a buffer that belongs to the host; `None` where there is no memory.
    fn try_allocate(&self, bytes: u64) -> Option<Self::Buffer>;
    /// Frees a buffer that belongs to the host.
    fn free(&self, buffer: Self::Buffer);
    /// Passes a buffer to the device, before commands that copy from it are submitted.
    fn pass_to_device(&self, buffer: &Self::Buffer);
    /// Has the device return a buffer once a fence is passed. Buffers return in the order of these
    /// calls.
    fn return_after(&mut self, buffer: &Self::Buffer, fence: &Self::Fence);
    /// A buffer that came back, if any did; waits for nothing.
    fn poll_returned(&mut self) -> Option<Returned<Self::Buffer>>;
    /// Waits until a fence is passed and the buffer that was to return then is back.
    ///
    /// # Errors
    /// If that does not happen: the device is lost.
    fn wait_returned(&mut self, fence: &Self::Fence) -> Result<Returned<Self::Buffer>, String>;
    /// Marks the device as lost, which its next read-back reports.
    fn report_lost(&self, reason: String);
}
