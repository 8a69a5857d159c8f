//! Buffers that a backend asks for, and what becomes of it where there is no memory.

use std::sync::Arc;

use moeflux_backend::DeviceError;
use wgpu::BufferUsages;

use crate::device::buffer::{BufferDesc, Mem};
use crate::device::context::Context;

/// Makes the buffers of a backend.
#[derive(Debug)]
pub(crate) struct Buffers {
    context: Arc<Context>,
    /// Bound instead of buffers that there is no memory for.
    stand_in: Mem,
    fault: Option<Fault>,
}

/// A buffer that this backend asked for in vain. Until it has said so at a
/// read-back no kernel is recorded.
#[derive(Clone, Copy, Debug)]
struct Fault {
    bytes: u64,
    /// Whether the buffer is requested only once.
    is_lasting: bool,
}

/// A buffer for kernels that is copied from and to.
fn storage_desc(bytes: u64, label: &'static str) -> BufferDesc {
    let usage = BufferUsages::STORAGE | BufferUsages::COPY_DST | BufferUsages::COPY_SRC;
    BufferDesc { bytes, usage, label, is_mapped: false }
}

impl Buffers {
    pub(super) fn new(context: Arc<Context>) -> Buffers {
        let bytes = 4;
        let (stand_in, is_there) = context.buffer(storage_desc(bytes, "stand-in"));
        let fault = (!is_there).then_some(Fault { bytes, is_lasting: true });
        Buffers { context, stand_in: Mem::new(stand_in), fault }
    }

    /// A buffer for kernels. Where there is no memory the stand-in is returned: no kernel runs until
    /// the next read-back has reported that. The caller requests the buffer again then, see
    /// [`Buffers::is_stand_in`].
    pub(crate) fn storage(&mut self, bytes: u64, label: &'static str) -> Mem {
        self.storage_or_fault(bytes, label, false)
    }

    /// A buffer for kernels that is requested only once: without memory for it the backend cannot be
    /// used any more.
    pub(crate) fn lasting_storage(&mut self, bytes: u64, label: &'static str) -> Mem {
        self.storage_or_fault(bytes, label, true)
    }

    /// A buffer for kernels, if there is memory for it: the caller does without.
    pub(crate) fn storage_if_free(&mut self, bytes: u64, label: &'static str) -> Option<Mem> {
        self.context.try_buffer(storage_desc(bytes, label)).map(Mem::new)
    }

    fn storage_or_fault(&mut self, bytes: u64, label: &'static str, is_lasting: bool) -> Mem {
        self.buffer(storage_desc(bytes, label), is_lasting)
    }

    /// A buffer, or the stand-in.
    pub(super) fn buffer(&mut self, desc: BufferDesc, is_lasting: bool) -> Mem {
        match self.context.try_buffer(desc) {
            Some(buffer) => Mem::new(buffer),
            None => {
                self.report_out_of_memory(desc.bytes, is_lasting);
                self.stand_in.clone()
            }
        }
    }

    /// Whether a buffer stands for one that there was no memory for.
    pub(crate) fn is_stand_in(&self, mem: &Mem) -> bool {
        mem.id == self.stand_in.id
    }

    /// Notes that there was no memory for a buffer of this size, which is requested only once where it
    /// `is_lasting`.
    pub(super) fn report_out_of_memory(&mut self, bytes: u64, is_lasting: bool) {
        let known = self.fault.get_or_insert(Fault { bytes, is_lasting });
        known.is_lasting |= is_lasting;
    }

    /// Whether memory ran out since the last read-back, or for good.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        self.fault.is_some()
    }

    /// Says what went wrong, without waiting for anything. The caller knows now
    /// that memory ran out, unless it did for good.
    ///
    /// # Errors
    /// Whatever went wrong since the last read-back.
    pub(crate) fn check(&mut self) -> Result<(), DeviceError> {
        self.context.check()?;
        let Some(Fault { bytes, is_lasting }) = self.fault else { return Ok(()) };
        if !is_lasting {
            self.fault = None;
        }
        Err(DeviceError::OutOfMemory { bytes })
    }
}
