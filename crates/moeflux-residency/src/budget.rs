//! Bytes that experts may take on a device.

/// How much of a limit is taken.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: u64,
    taken: u64,
    /// The device had no memory for another slab, whatever the limit says.
    pub(crate) is_exhausted: bool,
}

impl Budget {
    pub(crate) fn new(limit: u64) -> Budget {
        Budget { limit, taken: 0, is_exhausted: false }
    }

    /// Bytes that are not taken.
    pub(crate) fn left(&self) -> u64 {
        self.limit.saturating_sub(self.taken)
    }

    /// Counts bytes as taken, beyond the limit too.
    pub(crate) fn take(&mut self, bytes: u64) {
        self.taken += bytes;
    }

    /// Counts bytes as free again.
    pub(crate) fn give_back(&mut self, bytes: u64) {
        self.taken -= bytes;
    }

    #[cfg(test)]
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }
}
