//! What a store has done so far.

/// Counters since the store was opened or last reset, and its present state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Requests made.
    pub requests: u64,
    /// Experts that were resident when requested.
    pub hits: u64,
    /// Experts that had to be waited for, those on their way already included.
    pub misses: u64,
    /// Bytes of all records read, asked for or predicted.
    pub bytes_read: u64,
    /// Time in which at least one read was in progress, in nanoseconds:
    /// `bytes_read / read_ns` is the rate of the drive in GB/s.
    pub read_ns: u64,
    /// Time that consumers waited for experts, in nanoseconds.
    pub stall_ns: u64,
    /// Routed experts that had been predicted, and were resident, on their way or
    /// about to be read.
    pub prefetch_hits: u64,
    /// Routed experts that had not.
    pub prefetch_misses: u64,
    /// Experts that were predicted for the last token of each step.
    pub predictions: u64,
    /// Of these, how many it was then routed to.
    pub predictions_right: u64,
    /// Reads begun because of a prediction.
    pub prefetch_reads: u64,
    /// Of these, how many brought an expert that was then requested.
    pub prefetch_used: u64,
    /// Experts that gave their slot to another.
    pub evictions: u64,
    /// Slots that the budget allows; 0 when files are mapped.
    pub n_slots: usize,
    /// Bytes of all slots that exist.
    pub cache_bytes: u64,
    /// Experts in memory; when files are mapped, those once read.
    pub resident: usize,
}

impl StoreStats {
    /// Share of requested experts that were resident; 0 before the first.
    pub fn hit_rate(&self) -> f64 {
        share(self.hits, self.hits + self.misses)
    }

    /// Share of predicted experts that the router then chose; 0 before the first.
    pub fn predicted_right(&self) -> f64 {
        share(self.predictions_right, self.predictions)
    }

    /// Share of predicted reads that brought something useful; 0 before the first.
    pub fn prefetch_precision(&self) -> f64 {
        share(self.prefetch_used, self.prefetch_reads)
    }

    /// Share of routed experts that had been predicted; 0 before the first.
    pub fn prefetch_recall(&self) -> f64 {
        share(self.prefetch_hits, self.prefetch_hits + self.prefetch_misses)
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
