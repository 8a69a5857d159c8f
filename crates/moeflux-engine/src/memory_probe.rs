//! Measures the speed of memory.

use std::fs;

use moeflux_backend::cpu::limits::LimitProbe;
use moeflux_core::OptionId;
use moeflux_store::{unallocated_bytes, usable_memory};

use crate::device::{self, Device};
use crate::error::EngineError;
use crate::options::{EngineOptions, threads};

/// Memory that the read loop goes through, at least.
const LOOP_BYTES: usize = 256 << 20;

/// How much larger than the last cache it is, up to the most.
const CACHE_FACTOR: usize = 4;

/// Memory that the read loop goes through, at most: twice the largest caches. Systems take longer to give a page than a
/// loop takes to read it.
const MOST_LOOP_BYTES: usize = 1 << 30;

/// Measures the speed of memory again and again.
#[derive(Debug)]
pub struct MemoryProbe(LimitProbe);

impl MemoryProbe {
    /// A probe for the device, threads and instruction set of `options`. It
    /// holds some hundred MiB while it lives, less where memory is short.
    ///
    /// # Errors
    /// Where an option makes no sense, or the device is not the processor.
    pub fn new(options: &EngineOptions) -> Result<MemoryProbe, EngineError> {
        if matches!(options.compute.device, Device::Gpu(_)) {
            return Err(EngineError::Option {
                option: OptionId::Device,
                value: String::from("\"gpu\""),
                remedy: String::from("this is measured on the processor alone"),
            });
        }
        let wanted = MemoryProbe::wanted_bytes();
        let available = usable_memory().available.min(unallocated_bytes().unwrap_or(u64::MAX));
        let available = usize::try_from(available).unwrap_or(usize::MAX);
        let bytes = wanted.min(available / 4).max(1 << 20);
        let n_threads = threads(options)?;
        let isa = options.compute.isa.as_deref();
        Ok(MemoryProbe(device::limits(n_threads, isa, bytes)?))
    }

    /// Bytes that a probe holds where memory is not short.
    pub fn wanted_bytes() -> usize {
        let wanted = CACHE_FACTOR * last_cache_bytes().unwrap_or(0);
        wanted.clamp(LOOP_BYTES, MOST_LOOP_BYTES)
    }

    /// GB/s of a plain read loop: on one thread, on all.
    pub fn gb_s(&self) -> [f64; 2] {
        self.0.memory_gb_s()
    }

    /// Whether the probe holds more than the last cache does, so that its rate is that of memory.
    pub fn leaves_caches(&self) -> bool {
        self.0.memory_bytes() > 2 * last_cache_bytes().unwrap_or(0).min(LOOP_BYTES / 4)
    }

    /// Bytes that the probe holds.
    pub fn bytes(&self) -> u64 {
        self.0.memory_bytes() as u64
    }

    pub(crate) fn limits(&self) -> &LimitProbe {
        &self.0
    }
}

/// Bytes of the last cache of the first core.
pub(crate) fn last_cache_bytes() -> Option<usize> {
    let size = |i: usize| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{i}/size");
        let text = fs::read_to_string(path).ok()?;
        let kib: usize = text.trim().strip_suffix('K')?.parse().ok()?;
        Some(kib * 1024)
    };
    (0..5).filter_map(size).max()
}
