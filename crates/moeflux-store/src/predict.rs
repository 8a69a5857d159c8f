//! Which experts the next token is likely to use: those of the last one.

use moeflux_core::{ExpertId, ExpertKey, LayerIdx};

/// What is known of each layer.
#[derive(Debug)]
pub(crate) struct LastToken {
    layers: Vec<Layer>,
}

#[derive(Clone, Debug, Default)]
struct Layer {
    /// What the last token used.
    last: Option<Vec<ExpertId>>,
    /// The experts that the present prediction made available, in any order:
    /// resident, or being read and not failed so far.
    covered: Option<Vec<ExpertId>>,
}

/// How a prediction fared, counted in routed experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
}

impl LastToken {
    pub(crate) fn new(n_layers: usize) -> LastToken {
        LastToken { layers: vec![Layer::default(); n_layers] }
    }

    pub(crate) fn predicted(&self, layer: LayerIdx) -> Option<&[ExpertId]> {
        self.layers.get(layer.idx())?.last.as_deref()
    }

    /// Takes note of what a prediction makes available.
    pub(crate) fn cover(&mut self, layer: LayerIdx, experts: impl Iterator<Item = ExpertId>) {
        if let Some(layer) = self.layers.get_mut(layer.idx()) {
            layer.covered.get_or_insert_default().extend(experts);
        }
    }

    /// Takes back what failed to arrive.
    pub(crate) fn uncover(&mut self, key: ExpertKey) {
        let layer = self.layers.get_mut(key.layer.idx());
        if let Some(covered) = layer.and_then(|it| it.covered.as_mut()) {
            covered.retain(|&it| it != key.expert);
        }
    }

    pub(crate) fn is_covered(&self, layer: LayerIdx) -> bool {
        self.layers.get(layer.idx()).is_some_and(|it| it.covered.is_some())
    }

    /// Compares with what was routed, as sets, and learns from it.
    pub(crate) fn record(&mut self, layer: LayerIdx, routed: &[ExpertId]) -> Outcome {
        let mut outcome = Outcome { hits: 0, misses: routed.len() as u64 };
        let Some(layer) = self.layers.get_mut(layer.idx()) else { return outcome };
        if let Some(covered) = layer.covered.take() {
            outcome.hits = routed.iter().filter(|it| covered.contains(it)).count() as u64;
            outcome.misses -= outcome.hits;
        }
        let last = layer.last.get_or_insert_default();
        last.clear();
        last.extend_from_slice(routed);
        outcome
    }

    pub(crate) fn forget(&mut self) {
        self.layers.fill(Layer::default());
    }
}
