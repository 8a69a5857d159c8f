//! What a device counts that fetches experts by itself.

use moeflux_backend::DeviceCounters;

use super::Encoder;
use crate::buffer::Mem;

/// Two words: experts that came, and 16 bytes of these.
pub(super) const TALLY_BYTES: u64 = 8;

/// The counts on the device, and what of them is known.
#[derive(Debug)]
pub(super) struct Tally {
    mem: Mem,
    known: [u32; 2],
    has_news: bool,
}

impl Encoder {
    /// What the device counts in, which a kernel is about to do.
    pub(crate) fn tally(&mut self) -> Mem {
        let mem = match &self.tally {
            Some(tally) => tally.mem.clone(),
            None => self.lasting_storage(TALLY_BYTES, "tally"),
        };
        let known = self.tally.as_ref().map_or([0; 2], |it| it.known);
        self.tally = Some(Tally { mem: mem.clone(), known, has_news: true });
        mem
    }
}

impl Tally {
    /// The counts, if they grew since the last call.
    pub(super) fn take_news(&mut self) -> Option<Mem> {
        std::mem::take(&mut self.has_news).then(|| self.mem.clone())
    }

    /// Hands on what came since the last counts, if these are any.
    pub(super) fn note(&mut self, counts: &[u8], counters: &DeviceCounters) {
        let [experts, sizes] = counts.as_chunks::<4>().0 else { return };
        let now = [experts, sizes].map(|it| u32::from_le_bytes(*it));
        let [n, size] = [0, 1].map(|i| u64::from(now[i].wrapping_sub(self.known[i])));
        self.known = now;
        counters.add_fetched(n, 16 * size);
    }
}
