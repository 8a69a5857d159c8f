//! Which experts the next token is likely to use: those of the last one.

use moeflux_core::{ExpertId, ExpertKey, LayerIdx};

/// After so many requests in a row that nothing had to be read for, a layer is
/// not worth predicting until the next miss.
const EASY: u32 = 32;

/// What is known of each layer.
#[derive(Debug)]
pub(crate) struct LastToken {
    layers: Vec<Layer>,
}

#[derive(Clone, Debug, Default)]
struct Layer {
    /// What the last token used.
    last: Option<Vec<ExpertId>>,
    /// The experts of the present prediction, in any order, but for those that
    /// could not be read.
    covered: Option<Vec<ExpertId>>,
    /// What was predicted, available or not.
    predicted: Vec<ExpertId>,
    /// Requests in a row that found all their experts, none of them predicted.
    n_easy: u32,
}

/// How a prediction fared, counted in routed experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    /// Experts predicted.
    pub(crate) n_predicted: u64,
    /// Of these, how many were routed to.
    pub(crate) n_right: u64,
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

    /// Takes note of what a prediction says.
    pub(crate) fn predict(&mut self, layer: LayerIdx, experts: impl Iterator<Item = ExpertId>) {
        if let Some(layer) = self.layers.get_mut(layer.idx()) {
            layer.predicted.clear();
            layer.predicted.extend(experts);
        }
    }

    /// Takes note of a request, and whether it was served without reads or
    /// predictions.
    pub(crate) fn served(&mut self, layer: LayerIdx, is_easy: bool) {
        if let Some(layer) = self.layers.get_mut(layer.idx()) {
            layer.n_easy = if is_easy { layer.n_easy.saturating_add(1) } else { 0 };
        }
    }

    /// Whether predicting a layer could save somebody a wait.
    pub(crate) fn is_worthwhile(&self, layer: LayerIdx) -> bool {
        self.layers.get(layer.idx()).is_some_and(|it| it.n_easy < EASY)
    }

    /// Takes back what failed to arrive.
    pub(crate) fn clear_prediction(&mut self, key: ExpertKey) {
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
        let mut outcome =
            Outcome { hits: 0, misses: routed.len() as u64, n_predicted: 0, n_right: 0 };
        let Some(layer) = self.layers.get_mut(layer.idx()) else { return outcome };
        if let Some(covered) = layer.covered.take() {
            outcome.hits = routed.iter().filter(|it| covered.contains(it)).count() as u64;
            outcome.misses -= outcome.hits;
        }
        outcome.n_predicted = layer.predicted.len() as u64;
        outcome.n_right = layer.predicted.iter().filter(|it| routed.contains(it)).count() as u64;
        layer.predicted.clear();
        let last = layer.last.get_or_insert_default();
        last.clear();
        last.extend_from_slice(routed);
        outcome
    }

    pub(crate) fn forget(&mut self) {
        self.layers.fill(Layer::default());
    }
}
