//! What a device counts that fetches experts by itself.

use moeflux_backend::DeviceCounters;

use crate::device::buffer::Mem;

/// Two words: experts that came, and 16 bytes of these.
pub(super) const TALLY_BYTES: u64 = 8;

/// The counts on the device, and what of them is known.
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
