//! Counters of expert residency, kernels and waits of a device.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use moeflux_core::nanoseconds;

/// Counters that a backend increments and any thread may read meanwhile.
#[derive(Debug, Default)]
pub struct DeviceCounters {
    hits: AtomicU64,
    uploads: AtomicU64,
    fetched: AtomicU64,
    uploaded_bytes: AtomicU64,
    upload_ns: AtomicU64,
    kernels: AtomicU64,
    steps_ahead: AtomicU64,
    wait_ns: AtomicU64,
}

/// Values of [`DeviceCounters`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceStats {
    /// Uses of experts that were resident. Where the device routes by itself: every choice of
    /// every row, without those that it fetched.
    pub hits: u64,
    /// Experts that were copied to the device.
    pub uploads: u64,
    /// Of the uploads, those that the device fetched from the host's memory by itself.
    pub fetched: u64,
    /// Bytes of these uploads, unused prefetches included.
    pub uploaded_bytes: u64,
    /// Time in which at least one of them was written, in nanoseconds:
    /// `uploaded_bytes / upload_ns` is the rate of the bus in GB/s.
    pub upload_ns: u64,
    /// Kernels that were started.
    pub kernels: u64,
    /// Prerecorded steps that were replayed.
    pub steps_ahead: u64,
    /// Time in which the host waited for what it read back, in nanoseconds.
    pub wait_ns: u64,
}

impl DeviceCounters {
    /// Counts uses of resident experts.
    pub fn add_hits(&self, n: usize) {
        self.hits.fetch_add(n as u64, Ordering::Relaxed);
    }

    /// Counts the upload of an expert.
    pub fn add_upload(&self) {
        self.uploads.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts uploaded bytes, those of unused prefetches included.
    pub fn add_uploaded_bytes(&self, bytes: u64) {
        self.uploaded_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts `n` experts of `bytes` together that the device fetched by itself. They were
    /// counted as hits before.
    pub fn add_fetched(&self, n: u64, bytes: u64) {
        let less = |hits: u64| Some(hits.saturating_sub(n));
        self.hits.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).unwrap_or_default();
        self.uploads.fetch_add(n, Ordering::Relaxed);
        self.fetched.fetch_add(n, Ordering::Relaxed);
        self.uploaded_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts time in which experts were copied.
    pub fn add_upload_time(&self, time: Duration) {
        self.upload_ns.fetch_add(nanoseconds(time), Ordering::Relaxed);
    }

    /// Counts kernels.
    pub fn add_kernels(&self, n: usize) {
        self.kernels.fetch_add(n as u64, Ordering::Relaxed);
    }

    /// Counts a replayed step with its kernels and hits.
    pub fn add_step_ahead(&self, n_kernels: usize, n_hits: usize) {
        self.add_kernels(n_kernels);
        self.add_hits(n_hits);
        self.steps_ahead.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts time in which the host waited for the device.
    pub fn add_wait(&self, time: Duration) {
        self.wait_ns.fetch_add(nanoseconds(time), Ordering::Relaxed);
    }

    /// The values since the last reset.
    pub fn stats(&self) -> DeviceStats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        DeviceStats {
            hits: of(&self.hits),
            uploads: of(&self.uploads),
            fetched: of(&self.fetched),
            uploaded_bytes: of(&self.uploaded_bytes),
            upload_ns: of(&self.upload_ns),
            kernels: of(&self.kernels),
            steps_ahead: of(&self.steps_ahead),
            wait_ns: of(&self.wait_ns),
        }
    }

    /// Sets all counters to zero.
    pub fn reset(&self) {
        let all = [&self.hits, &self.uploads, &self.fetched, &self.uploaded_bytes, &self.upload_ns];
        for counter in all.into_iter().chain([&self.kernels, &self.steps_ahead, &self.wait_ns]) {
            counter.store(0, Ordering::Relaxed);
        }
    }
}

impl DeviceStats {
    /// GB/s while experts were written to the device; `None` where none were.
    pub fn upload_gb_s(&self) -> Option<f64> {
        (self.upload_ns > 0).then(|| self.uploaded_bytes as f64 / self.upload_ns as f64)
    }
}
