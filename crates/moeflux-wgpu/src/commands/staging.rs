//! Mapped buffers, which threads write and commands copy from.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use moeflux_core::Expert;
use moeflux_residency::{Packing, Piece, Returned, StagingBuffer, StagingMemory};
use wgpu::{BufferUsages, MapMode, PollType, SubmissionIndex};

use crate::device::buffer::{BufferDesc, Mem};
use crate::device::context::Context;
use crate::layouts::format::write_packed;

/// Longest time between the end of a wait and the callback.
const CALLBACK: Duration = Duration::from_secs(10);

/// The mapped buffers of a device: a buffer of the host is mapped, one of the device is not.
#[derive(Debug)]
pub(crate) struct MappedBuffers {
    context: Arc<Context>,
    /// Buffers that are mapped again.
    returned: Receiver<Returned<Mem>>,
    return_sender: Sender<Returned<Mem>>,
}

impl MappedBuffers {
    pub(crate) fn new(context: Arc<Context>) -> MappedBuffers {
        let (return_sender, returned) = channel();
        MappedBuffers { context, returned, return_sender }
    }
}

impl StagingMemory for MappedBuffers {
    type Buffer = Mem;
    type Fence = SubmissionIndex;

    fn try_allocate(&self, bytes: u64) -> Option<Mem> {
        let mut usage = BufferUsages::MAP_WRITE | BufferUsages::COPY_SRC;
        usage.set(BufferUsages::STORAGE, self.context.reads_mapped);
        let desc = BufferDesc { bytes, usage, label: "staging", is_mapped: true };
        Some(Mem::new(self.context.try_buffer(desc)?))
    }

    fn free(&self, buffer: Mem) {
        buffer.buffer.destroy();
    }

    fn pass_to_device(&self, buffer: &Mem) {
        buffer.buffer.unmap();
    }

    /// Mapping waits for the submissions so far, of which `fence` is the last.
    fn return_after(&mut self, buffer: &Mem, _fence: &SubmissionIndex) {
        let return_sender = self.return_sender.clone();
        let returned = buffer.clone();
        buffer.buffer.map_async(MapMode::Write, .., move |outcome| {
            let returned = Returned { buffer: returned, is_writable: outcome.is_ok() };
            // The receiver is gone once the backend is dropped.
            let _ = return_sender.send(returned);
        });
    }

    fn poll_returned(&mut self) -> Option<Returned<Mem>> {
        self.returned.try_recv().ok()
    }

    fn wait_returned(&mut self, fence: &SubmissionIndex) -> Result<Returned<Mem>, String> {
        let wait = PollType::Wait { submission_index: Some(fence.clone()), timeout: None };
        self.context.device.poll(wait).map_err(|err| format!("waiting failed: {err}"))?;
        // Another backend of this device may run the callback.
        let returned = self.returned.recv_timeout(CALLBACK);
        returned.map_err(|err| format!("a staging buffer never came back: {err}"))
    }

    fn report_lost(&self, reason: String) {
        self.context.lose(reason);
    }
}

impl StagingBuffer for Mem {
    fn bytes(&self) -> u64 {
        Mem::bytes(self)
    }

    fn write(
        &self,
        at: u64,
        expert: &Expert,
        packing: &Packing,
        piece: &Piece,
    ) -> Result<(), String> {
        let Piece { matrix, bytes } = piece;
        let part = &packing.parts()[*matrix];
        let first = at + part.bytes.start as u64;
        let range = first + bytes.start as u64..first + bytes.end as u64;
        let mapped = self.buffer.get_mapped_range_mut(range);
        let mut view = mapped.map_err(|err| format!("staging memory is not there: {err}"))?;
        let matrix = expert.matrix(packing.matrix(*matrix));
        write_packed(&matrix, part.scales_at, bytes.clone(), view.slice(..));
        Ok(())
    }
}
