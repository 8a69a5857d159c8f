//! The buffer that the host reads back, and the device's counts that go along.

use moeflux_backend::DeviceCounters;
use wgpu::BufferUsages;

use crate::commands::buffers::Buffers;
use crate::device::buffer::{BufferDesc, Mem};

/// Two words: experts that came, and 16 bytes of these.
pub(super) const TALLY_BYTES: u64 = 8;

/// The buffer that the host reads back, and the device's counts that go along.
#[derive(Debug, Default)]
pub(crate) struct Readback {
    buffer: Option<Mem>,
    pub(super) tally: Option<Tally>,
}

impl Readback {
    /// A buffer of at least this size that the host can map; the stand-in where there is no memory.
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
        let new = || Tally {
            mem: buffers.lasting_storage(TALLY_BYTES, "tally"),
            known: [0; 2],
            has_news: true,
        };
        let tally = self.tally.get_or_insert_with(new);
        tally.has_news = true;
        tally.mem.clone()
    }
}

/// The counts of a device that fetches experts by itself, and what of them is known.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) mem: Mem,
    pub(super) known: [u32; 2],
    pub(super) has_news: bool,
}

impl Tally {
    /// The counts, if they grew since the last call.
    pub(super) fn take_news(&mut self) -> Option<Mem> {
        std::mem::take(&mut self.has_news).then(|| self.mem.clone())
    }

    /// Hands on what came since the last counts, if these are any.
    pub(super) fn note(&mut self, counts: &[u8], counters: &DeviceCounters) {
        let [experts, sizes] = counts.as_chunks::<4>().0 else { return };
        let now = [experts, sizes].map(|bytes| u32::from_le_bytes(*bytes));
        let [n, size] = [0, 1].map(|i| u64::from(now[i].wrapping_sub(self.known[i])));
        self.known = now;
        counters.add_fetched(n, 16 * size);
    }
}
