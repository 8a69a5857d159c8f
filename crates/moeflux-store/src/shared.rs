//! The state that consumers and readers share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};

use moeflux_core::LayerIdx;

use crate::cache::CacheState;
use crate::reader::Reader;

/// The state that consumers and readers share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) reader: Reader,
    pub(crate) cache: Mutex<CacheState>,
    /// Notified when a read can start. It wakes one reader, which wakes the next if another read
    /// can start.
    pub(crate) work: Condvar,
    /// Notified when a record has been read, or when slots may have become free.
    pub(crate) arrived: Condvar,
    pub(crate) hints: Hints,
}

/// Flags of each layer that consumers read without the lock.
#[derive(Debug)]
pub(crate) struct Hints {
    /// Indexed by layer: whether predicting it may save a wait, as of its last request.
    pub(crate) is_worthwhile: Vec<AtomicBool>,
    /// Indexed by layer: whether it was predicted since its routing was last recorded.
    pub(crate) is_predicted: Vec<AtomicBool>,
}

impl Hints {
    pub(crate) fn new(n_layers: usize) -> Hints {
        let all = |value: bool| (0..n_layers).map(|_| AtomicBool::new(value)).collect();
        Hints { is_worthwhile: all(true), is_predicted: all(false) }
    }

    pub(crate) fn is_worthwhile(&self, layer: LayerIdx) -> bool {
        self.is_worthwhile.get(layer.idx()).is_some_and(|flag| flag.load(Ordering::Relaxed))
    }

    pub(crate) fn set_worthwhile(&self, layer: LayerIdx, is_worthwhile: bool) {
        self.is_worthwhile[layer.idx()].store(is_worthwhile, Ordering::Relaxed);
    }

    pub(crate) fn set_predicted(&self, layer: LayerIdx) {
        self.is_predicted[layer.idx()].store(true, Ordering::Relaxed);
    }

    /// Returns whether the layer was predicted, and clears the flag.
    pub(crate) fn take_predicted(&self, layer: LayerIdx) -> bool {
        self.is_predicted
            .get(layer.idx())
            .is_some_and(|predicted| predicted.swap(false, Ordering::Relaxed))
    }

    /// Resets all flags to their values before the first request.
    pub(crate) fn forget(&self) {
        self.is_worthwhile.iter().for_each(|flag| flag.store(true, Ordering::Relaxed));
        self.is_predicted.iter().for_each(|predicted| predicted.store(false, Ordering::Relaxed));
    }
}

#[cfg(test)]
thread_local! {
    /// How often this thread took a store's lock.
    pub(crate) static N_LOCKS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, CacheState> {
        #[cfg(test)]
        N_LOCKS.set(N_LOCKS.get() + 1);
        self.cache.lock().expect("no holder of the lock panics")
    }

    /// Sets the budget of the cache, in bytes.
    pub(crate) fn resize(&self, cache_bytes: u64) {
        let slot_bytes = self.reader.plan.slot_bytes() as u64;
        let n_experts = self.reader.plan.n_experts();
        if let Some(n_slots) = cache_bytes.checked_div(slot_bytes) {
            let n_slots = usize::try_from(n_slots).unwrap_or(usize::MAX);
            self.lock().resize(n_slots.min(n_experts));
            // Slots may have become free for requests that wait for one.
            self.arrived.notify_all();
        }
    }

    /// Runs a reader thread until the store is dropped.
    pub(crate) fn serve(&self) {
        let mut cache = self.lock();
        while !cache.is_closed() {
            let Some(mut part) = cache.next_part(&self.reader) else {
                cache = self.work.wait(cache).expect("no holder of the lock panics");
                continue;
            };
            if cache.has_work() {
                self.work.notify_one();
            }
            drop(cache);
            let target = part.target;
            let outcome = self.reader.bring(&mut part);
            let layout = &self.reader.plan.layer(target.key.layer).layout;
            cache = self.lock();
            if cache.complete(part, outcome, layout) {
                self.arrived.notify_all();
            }
        }
    }
}
