//! The file of what memories gave when they were measured, so that a choice takes no time the next time.
//!
//! It changes which device is chosen and nothing else: one that is damaged costs another measurement.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use moeflux_core::atomic_file::{self, Access, Durability};
use moeflux_core::private;
use serde::{Deserialize, Serialize};

use crate::device::probed::GpuRates;

const VERSION: u32 = 1;

/// More than the entries of many GPUs and drivers take.
const MAX_BYTES: u64 = 1 << 20;

/// Entries that are kept; older drivers' go first.
const MAX_ENTRIES: usize = 32;

/// What was measured on this machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Rates {
    version: u32,
    processors: Vec<Processor>,
    gpus: Vec<Gpu>,
}

/// A processor with some threads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Processor {
    key: String,
    memory_gb_s: f64,
}

/// A GPU with its driver and kernels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Gpu {
    key: String,
    read_gb_s: f64,
    upload_gb_s: f64,
    /// What its self-test found, if it failed.
    fault: Option<String>,
}

fn path(dir: &Path) -> PathBuf {
    dir.join("rates.json")
}

impl Rates {
    /// What a directory has; nothing where there is no file, or a damaged one.
    pub(super) fn read(dir: Option<&Path>) -> Rates {
        let read = |dir: &Path| {
            let mut bytes = Vec::new();
            let path = path(dir);
            // A pipe of that name would never end.
            path.metadata().ok().filter(fs::Metadata::is_file)?;
            fs::File::open(path).ok()?.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
            serde_json::from_slice::<Rates>(&bytes).ok()
        };
        let is_sane = |rates: &Rates| {
            let gpus = rates.gpus.iter().flat_map(|gpu| [gpu.read_gb_s, gpu.upload_gb_s]);
            let all = rates.processors.iter().map(|one| one.memory_gb_s).chain(gpus);
            rates.version == VERSION && all.into_iter().all(|rate| rate.is_finite() && rate >= 0.0)
        };
        let rates = dir.and_then(read).filter(is_sane);
        rates.unwrap_or(Rates { version: VERSION, ..Rates::default() })
    }

    /// Writes the file, whole or not at all. What cannot be written is measured again the next time.
    pub(super) fn write(&self, dir: Option<&Path>) {
        let Some(dir) = dir else { return };
        let Ok(text) = serde_json::to_vec_pretty(self) else { return };
        let _ = private::create_own_dir(dir).and_then(|()| {
            atomic_file::write(&path(dir), &text, Access::Private, Durability::Cached)
        });
    }

    /// GB/s of the processor's memory.
    pub(super) fn processor(&self, key: &str) -> Option<f64> {
        self.processors.iter().find(|one| one.key == key).map(|one| one.memory_gb_s)
    }

    /// Keeps the processor's rate.
    pub(super) fn keep_processor(&mut self, key: &str, memory_gb_s: f64) {
        self.processors.retain(|one| one.key != key);
        self.processors.push(Processor { key: key.to_owned(), memory_gb_s });
        drop_oldest(&mut self.processors);
    }

    /// What is known of a GPU: its rates, or what its self-test found.
    pub(super) fn gpu(&self, key: &str) -> Option<Result<GpuRates, &str>> {
        let gpu = self.gpus.iter().find(|gpu| gpu.key == key)?;
        Some(match &gpu.fault {
            Some(fault) => Err(fault),
            None => Ok(GpuRates { read_gb_s: gpu.read_gb_s, upload_gb_s: gpu.upload_gb_s }),
        })
    }

    /// Keeps what was found out of a GPU.
    pub(super) fn keep_gpu(&mut self, key: &str, found: Result<GpuRates, String>) {
        self.gpus.retain(|gpu| gpu.key != key);
        let none = GpuRates { read_gb_s: 0.0, upload_gb_s: 0.0 };
        let GpuRates { read_gb_s, upload_gb_s } = *found.as_ref().unwrap_or(&none);
        self.gpus.push(Gpu { key: key.to_owned(), read_gb_s, upload_gb_s, fault: found.err() });
        drop_oldest(&mut self.gpus);
    }
}

fn drop_oldest<T>(entries: &mut Vec<T>) {
    let n_old = entries.len().saturating_sub(MAX_ENTRIES);
    entries.drain(..n_old);
}
