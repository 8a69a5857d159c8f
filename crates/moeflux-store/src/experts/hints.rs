//! Flags of each layer that consumers read without the lock.

use std::sync::atomic::{AtomicBool, Ordering};

use moeflux_core::LayerIdx;

/// Flags of each layer that consumers read without the lock.
#[derive(Debug)]
pub(super) struct Hints {
    /// Indexed by layer: whether predicting it may save a wait, as of its last request.
    is_worthwhile: Vec<AtomicBool>,
    /// Indexed by layer: whether it was predicted since its routing was last recorded.
    is_predicted: Vec<AtomicBool>,
}

impl Hints {
    pub(super) fn new(n_layers: usize) -> Hints {
        let all = |value: bool| (0..n_layers).map(|_| AtomicBool::new(value)).collect();
        Hints { is_worthwhile: all(true), is_predicted: all(false) }
    }

    pub(super) fn is_worthwhile(&self, layer: LayerIdx) -> bool {
        self.is_worthwhile.get(layer.idx()).is_some_and(|flag| flag.load(Ordering::Relaxed))
    }

    pub(super) fn set_worthwhile(&self, layer: LayerIdx, is_worthwhile: bool) {
        self.is_worthwhile[layer.idx()].store(is_worthwhile, Ordering::Relaxed);
    }

    pub(super) fn set_predicted(&self, layer: LayerIdx) {
        self.is_predicted[layer.idx()].store(true, Ordering::Relaxed);
    }

    /// Returns whether the layer was predicted, and clears the flag.
    pub(super) fn take_predicted(&self, layer: LayerIdx) -> bool {
        self.is_predicted
            .get(layer.idx())
            .is_some_and(|predicted| predicted.swap(false, Ordering::Relaxed))
    }

    /// Resets all flags to their values before the first request.
    pub(super) fn forget(&self) {
        self.is_worthwhile.iter().for_each(|flag| flag.store(true, Ordering::Relaxed));
        self.is_predicted.iter().for_each(|predicted| predicted.store(false, Ordering::Relaxed));
    }
}
