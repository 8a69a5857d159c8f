//! The buffer that the host reads back, and the device's counts that go along.

use wgpu::BufferUsages;

use crate::commands::buffers::Buffers;
use crate::commands::tally::{TALLY_BYTES, Tally};
use crate::device::buffer::{BufferDesc, Mem};

/// The buffer that the host reads back, and the device's counts that go along.
#[derive(Debug, Default)]
pub(crate) struct Readback {
    buffer: Option<Mem>,
    pub(super) tally: Option<Tally>,
}

impl Readback {
    /// A buffer of at least so many bytes that the host can map; the stand-in where there is no memory.
    pub(super) fn buffer(&mut self, buffers: &mut Buffers, bytes: u64) -> Mem {
        if let Some(mem) = &self.buffer
            && mem.bytes() >= bytes
        {
            return mem.clone();
        }
        let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
        let bytes = bytes.next_power_of_two().max(1 << 16);
        let desc = BufferDesc { bytes, usage, label: "read-back", is_mapped: false };
        let mem = buffers.buffer(desc, false);
        if !buffers.is_stand_in(&mem) {
            self.buffer = Some(mem.clone());
        }
        mem
    }

    /// What the device counts in, which a kernel is about to do.
    pub(crate) fn tally(&mut self, buffers: &mut Buffers) -> Mem {
        let mem = match &self.tally {
            Some(tally) => tally.mem.clone(),
            None => buffers.lasting_storage(TALLY_BYTES, "tally"),
        };
        let known = self.tally.as_ref().map_or([0; 2], |tally| tally.known);
        self.tally = Some(Tally { mem: mem.clone(), known, has_news: true });
        mem
    }
}
