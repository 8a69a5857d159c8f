//! Writes down what the routers choose, for `replay`.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use moeflux_backend::Routing;
use moeflux_core::{ExpertId, LayerIdx, WriteError, private};
use moeflux_model::{ModelShape, RoutingObserver, SCORES_PER_EXPERT};
use moeflux_store::{TraceShape, TracedLayer};

use crate::error::EngineError;

/// Writes a routing trace, step by step: a step that fails leaves nothing.
#[derive(Debug)]
pub(crate) struct Recorder {
    path: PathBuf,
    file: File,
    shape: TraceShape,
    step: HashMap<LayerIdx, Recorded>,
}

/// One layer of a step, all rows one after another.
#[derive(Debug, Default)]
struct Recorded {
    chosen: Vec<ExpertId>,
    scores: Routing,
    predicted: Vec<ExpertId>,
}

impl Recorder {
    /// Begins a file, for its owner only; one that is there is replaced.
    pub(crate) fn create(
        path: &Path,
        layers: Vec<LayerIdx>,
        model: &ModelShape,
        slot_bytes: u64,
    ) -> Result<Recorder, EngineError> {
        let ModelShape { n_experts, n_eligible, top_k, .. } = *model;
        let n_scores = (SCORES_PER_EXPERT * top_k).min(n_eligible);
        let shape =
            TraceShape { layers, n_experts, top_k, n_scores, has_predictions: true, slot_bytes };
        let mut options = File::options();
        options.write(true).create(true).truncate(true);
        let mut file = private::open(&mut options, path).map_err(WriteError::at(path))?;
        file.write_all(&shape.header()).map_err(WriteError::at(path))?;
        Ok(Recorder { path: path.to_path_buf(), file, shape, step: HashMap::new() })
    }

    /// Forgets the layers of a step that failed.
    pub(crate) fn discard(&mut self) {
        self.step.clear();
    }

    /// Writes what a step of `n_rows` tokens did.
    pub(crate) fn end_step(&mut self, n_rows: usize) -> Result<(), EngineError> {
        let TraceShape { top_k, n_scores, .. } = self.shape;
        let mut out = Vec::new();
        for row in 0..n_rows {
            let layer = |layer| {
                let recorded: &Recorded = &self.step[layer];
                let scores = recorded.scores.experts[row * n_scores..].iter().copied();
                let scores = scores.zip(recorded.scores.weights[row * n_scores..].iter().copied());
                let chosen = &recorded.chosen[row * top_k..(row + 1) * top_k];
                let predicted = recorded.predicted.get(row * top_k..(row + 1) * top_k);
                TracedLayer {
                    scores: chosen_first(chosen, &scores.take(n_scores).collect::<Vec<_>>()),
                    predicted: predicted.map_or_else(Vec::new, <[ExpertId]>::to_vec),
                }
            };
            let token: Vec<TracedLayer> = self.shape.layers.iter().map(layer).collect();
            self.shape.encode(&token, &mut out);
        }
        self.step.clear();
        self.file.write_all(&out).map_err(WriteError::at(&self.path))?;
        Ok(())
    }
}

impl RoutingObserver for Recorder {
    fn predicted(&mut self, layer: LayerIdx, experts: Vec<ExpertId>) {
        self.step.entry(layer).or_default().predicted = experts;
    }

    fn routed(&mut self, layer: LayerIdx, chosen: &[ExpertId], scores: Routing) {
        let recorded = self.step.entry(layer).or_default();
        recorded.chosen = chosen.to_vec();
        recorded.scores = scores;
    }
}

/// As many pairs as `scores` has: those of the chosen, then the best others.
fn chosen_first(chosen: &[ExpertId], scores: &[(ExpertId, f32)]) -> Vec<(ExpertId, f32)> {
    let score = |expert| scores.iter().find(|score| score.0 == expert).map_or(0.0, |score| score.1);
    let first = chosen.iter().map(|&expert| (expert, score(expert)));
    let rest = scores.iter().filter(|score| !chosen.contains(&score.0)).copied();
    first.chain(rest).take(scores.len()).collect()
}
