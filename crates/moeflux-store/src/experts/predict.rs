//! Predicts that the next token uses the experts of the last one.

use moeflux_core::{ExpertId, ExpertKey, LayerIdx};

/// After this many requests in a row that needed no read, a layer is not worth predicting until its
/// next miss.
const EASY: u32 = 32;

/// The predictions and the last routing of each layer.
#[derive(Debug)]
pub(crate) struct LastToken {
    layers: Vec<Layer>,
}

#[derive(Clone, Debug, Default)]
struct Layer {
    /// The experts that the last token used.
    last: Option<Vec<ExpertId>>,
    /// The experts of the present prediction, in any order, without those that could not be read.
    covered: Option<Vec<ExpertId>>,
    /// The experts of the last prediction, including those that could not be read.
    predicted: Vec<ExpertId>,
    /// Requests in a row that found all their experts resident, none because of a prediction.
    n_easy: u32,
}

/// How a prediction compares with the routing, counted in routed experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    /// Experts predicted.
    pub(crate) n_predicted: u64,
    /// Those of `n_predicted` that were routed to.
    pub(crate) n_correct: u64,
}

impl LastToken {
    pub(crate) fn new(n_layers: usize) -> LastToken {
        LastToken { layers: vec![Layer::default(); n_layers] }
    }

    pub(crate) fn predicted(&self, layer: LayerIdx) -> Option<&[ExpertId]> {
        self.layers.get(layer.idx())?.last.as_deref()
    }

    /// Records experts that a prediction makes available.
    pub(crate) fn cover(&mut self, layer: LayerIdx, experts: impl Iterator<Item = ExpertId>) {
        if let Some(layer) = self.layers.get_mut(layer.idx()) {
            layer.covered.get_or_insert_default().extend(experts);
        }
    }

    /// Records the experts of a prediction.
    pub(crate) fn predict(&mut self, layer: LayerIdx, experts: impl Iterator<Item = ExpertId>) {
        if let Some(layer) = self.layers.get_mut(layer.idx()) {
            layer.predicted.clear();
            layer.predicted.extend(experts);
        }
    }

    /// Records a request, and whether it was served without reads and predictions.
    pub(crate) fn served(&mut self, layer: LayerIdx, is_easy: bool) {
        if let Some(layer) = self.layers.get_mut(layer.idx()) {
            layer.n_easy = if is_easy { layer.n_easy.saturating_add(1) } else { 0 };
        }
    }

    /// Whether predicting a layer could save a wait.
    pub(crate) fn is_worthwhile(&self, layer: LayerIdx) -> bool {
        self.layers.get(layer.idx()).is_some_and(|layer| layer.n_easy < EASY)
    }

    /// Takes an expert out of the prediction, because its read failed or was cancelled.
    pub(crate) fn clear_prediction(&mut self, key: ExpertKey) {
        let layer = self.layers.get_mut(key.layer.idx());
        if let Some(covered) = layer.and_then(|layer| layer.covered.as_mut()) {
            covered.retain(|&expert| expert != key.expert);
        }
    }

    pub(crate) fn is_covered(&self, layer: LayerIdx) -> bool {
        self.layers.get(layer.idx()).is_some_and(|layer| layer.covered.is_some())
    }

    /// Compares the prediction with the routing, as sets, and keeps the routing as the next
    /// prediction.
    pub(crate) fn record(&mut self, layer: LayerIdx, routed: &[ExpertId]) -> Outcome {
        let mut outcome =
            Outcome { hits: 0, misses: routed.len() as u64, n_predicted: 0, n_correct: 0 };
        let Some(layer) = self.layers.get_mut(layer.idx()) else { return outcome };
        if let Some(covered) = layer.covered.take() {
            outcome.hits = routed.iter().filter(|expert| covered.contains(expert)).count() as u64;
            outcome.misses -= outcome.hits;
        }
        outcome.n_predicted = layer.predicted.len() as u64;
        outcome.n_correct =
            layer.predicted.iter().filter(|expert| routed.contains(expert)).count() as u64;
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
