//! The counters of a store.

/// Counters since the store was opened or last reset, and the present state of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Requests made.
    pub requests: u64,
    /// Experts that were resident when requested.
    pub hits: u64,
    /// Experts that were not resident when requested, including those that were being read.
    pub misses: u64,
    /// Bytes of all records read, for requests and for predictions.
    pub bytes_read: u64,
    /// Time in which at least one read was in progress, in nanoseconds: `bytes_read / read_ns` is
    /// the rate of the drive in GB/s.
    pub read_ns: u64,
    /// Time that consumers waited for experts, in nanoseconds.
    pub stall_ns: u64,
    /// Routed experts that had been predicted. Predictions whose reads failed do not count.
    pub prefetch_hits: u64,
    /// Routed experts that had not been predicted, or whose predicted reads failed.
    pub prefetch_misses: u64,
    /// Experts that were predicted for the last token of each step.
    pub predictions: u64,
    /// Those of `predictions` that the token was then routed to.
    pub predictions_correct: u64,
    /// Reads begun because of a prediction.
    pub prefetch_reads: u64,
    /// Those of `prefetch_reads` whose expert was then requested.
    pub prefetch_used: u64,
    /// Experts that were evicted.
    pub evictions: u64,
    /// Slots that the budget allows; 0 when files are mapped.
    pub n_slots: usize,
    /// Bytes of all slots that exist.
    pub cache_bytes: u64,
    /// Experts in memory; when files are mapped, those that were read at least once.
    pub resident: usize,
}

impl StoreStats {
    /// Share of requested experts that were resident; 0 before the first.
    pub fn hit_rate(&self) -> f64 {
        share(self.hits, self.hits + self.misses)
    }

    /// Share of predicted experts that the router then chose; 0 before the first.
    pub fn prediction_accuracy(&self) -> f64 {
        share(self.predictions_correct, self.predictions)
    }

    /// Share of prefetch reads whose expert was then requested; 0 before the first.
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
