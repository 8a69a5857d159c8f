//! The guarantees of the store to its callers, tested on real files.

mod bank;
mod device_copies;
mod direct;
mod faults;
mod mapped;
mod memory;
mod model;
mod opening;
mod prefetching;
mod pressure;
mod probe;
mod requests;
mod resizing;
mod timeline;

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use moeflux_core::{Expert, ExpertId, ExpertKey, HostBuf, LayerIdx, PartSpan};
use tempfile::TempDir;

use self::bank::{Shape, spelled};
use self::probe::{Control, Probe};
use crate::drive::System;
use crate::{
    CachePolicy, DEFAULT_READERS, ExpertStore, IoMode, Prefetch, SlotAlloc, StoreError,
    StoreOptions,
};

/// A store over files that are removed when it is dropped.
struct Fixture {
    dir: TempDir,
    store: ExpertStore,
    control: Arc<Control>,
}

fn options(mode: IoMode) -> StoreOptions {
    StoreOptions {
        mode,
        may_fall_back: false,
        cache_bytes: u64::MAX,
        shrinks_to: None,
        headroom: 0,
        max_pinned_bytes: None,
        policy: CachePolicy::Lru,
        n_readers: DEFAULT_READERS,
        prefetch: Prefetch::Off,
        allow_missing: false,
        top_k: 1,
    }
}

fn zeroed() -> SlotAlloc {
    Box::new(HostBuf::try_zeroed)
}

/// Block size of the simulated device, in bytes.
const BLOCK: usize = 512;

/// A system whose files accept or refuse direct reads. They are read through the page cache in any
/// case; the probe checks the alignment.
pub(crate) struct Pretended {
    pub(crate) direct: fn() -> io::Result<usize>,
}

impl System for Pretended {
    fn open(&self, path: &Path) -> io::Result<File> {
        File::open(path)
    }

    fn open_direct(&self, path: &Path) -> io::Result<(File, usize)> {
        Ok((File::open(path)?, (self.direct)()?))
    }
}

/// Opens a store with `n_slots` slots over new files.
fn fixture(shape: &[Shape], n_slots: u64, options: StoreOptions) -> Fixture {
    let dir = TempDir::new().unwrap();
    let bank = bank::write(dir.path(), shape);
    let slot_bytes = crate::experts::plan::Plan::new(bank.clone()).slot_bytes() as u64;
    let options = StoreOptions { cache_bytes: n_slots * slot_bytes, ..options };
    let control = Arc::new(Control::default());
    if options.mode == IoMode::Direct {
        control.expect_blocks(BLOCK);
    }
    let probe = Arc::clone(&control);
    let system = Pretended { direct: || Ok(BLOCK) };
    let store = ExpertStore::open_with(bank, zeroed(), options, &system, |files| {
        Box::new(Probe::new(files, probe))
    });
    Fixture { dir, store: store.unwrap(), control }
}

/// The message of an error, with its paths relative to `dir`.
fn without_dir(err: &StoreError, dir: &Path) -> String {
    // The path of `dir` with the system's separator at its end.
    err.to_string().replace(&dir.join("").display().to_string(), "")
}

fn ids(experts: &[u16]) -> Vec<ExpertId> {
    experts.iter().map(|&expert| ExpertId(expert)).collect()
}

#[track_caller]
fn check_bytes(expert: &Expert) {
    for (extent, &len) in expert.layout.extents.iter().enumerate() {
        let bytes = expert.part(PartSpan { extent, offset: 0, len });
        assert_eq!(bytes, spelled(expert.key, extent, len), "extent {extent} of {}", expert.key);
    }
}

/// Requests experts, checks their bytes, and returns them in order.
#[track_caller]
fn fetch(store: &ExpertStore, layer: u16, experts: &[u16]) -> Vec<Arc<Expert>> {
    let mut held = vec![None; experts.len()];
    let mut arrivals = store.request(LayerIdx(layer), &ids(experts));
    while let Some(batch) = arrivals.next_batch().unwrap() {
        for (index, expert) in batch {
            let want = ExpertKey { layer: LayerIdx(layer), expert: ExpertId(experts[index]) };
            assert_eq!(expert.key, want);
            check_bytes(&expert);
            assert!(held[index].replace(expert).is_none(), "{want} should arrive once");
        }
    }
    held.into_iter().map(Option::unwrap).collect()
}

/// Requests experts and drops each batch before the next.
#[track_caller]
fn stream(store: &ExpertStore, layer: u16, experts: &[u16]) -> Result<usize, StoreError> {
    let mut n_arrived = 0;
    let mut arrivals = store.request(LayerIdx(layer), &ids(experts));
    while let Some(batch) = arrivals.next_batch()? {
        batch.iter().for_each(|(_, expert)| check_bytes(expert));
        n_arrived += batch.len();
    }
    Ok(n_arrived)
}
