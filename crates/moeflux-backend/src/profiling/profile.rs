//! The record of timed ops.

use std::collections::HashMap;
use std::time::Instant;

use moeflux_core::quant::MatrixFormat;

use crate::{ActivationPrecision, Stage, Weight};

/// The key of ops whose times may be compared.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OpKey {
    /// The method of [`Backend`](crate::Backend).
    pub op: &'static str,
    /// The matrices that it multiplies with.
    pub weights: Vec<Weight>,
    /// Rows of the batch.
    pub rows: usize,
}

/// One call of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpSample {
    /// How long it took.
    pub nanoseconds: u64,
    /// Bytes of weights, caches and states that it had to touch; 0 for ops
    /// whose bytes are not counted.
    pub bytes: u64,
    /// Products that it had to add up.
    pub macs: u64,
}

/// Ops of one stage that followed each other without a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageSpan {
    /// The stage.
    pub stage: Stage,
    /// Its layer; `None` outside of layers.
    pub layer: Option<u16>,
    /// When the first op began.
    pub start: Instant,
    /// When the last one ended.
    pub end: Instant,
}

/// A resident matrix, as far as measurements need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightFacts {
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// How the elements are stored.
    pub format: MatrixFormat,
    /// How products treat their inputs.
    pub inputs: ActivationPrecision,
}

impl WeightFacts {
    /// Bytes of the matrix, scales and biases included.
    pub fn bytes(&self) -> u64 {
        self.format.matrix_bytes(self.rows, self.cols) as u64
    }
}

/// The ops that ran while a [`Profiler`](super::Profiler) ran.
#[derive(Clone, Debug, Default)]
pub struct OpProfile {
    /// Every call, by what it had to do.
    pub ops: HashMap<OpKey, Vec<OpSample>>,
    /// Nanoseconds inside ops, by stage and layer.
    pub stages: HashMap<(Stage, Option<u16>), u64>,
    /// In order of time.
    pub spans: Vec<StageSpan>,
}

/// Spans beyond this many are not kept.
const MAX_SPANS: usize = 1 << 18;

/// Pauses between ops of one span: the engine's own work, not a wait.
const MAX_PAUSE_NS: u128 = 20_000;

impl OpProfile {
    pub(super) fn add(&mut self, key: OpKey, sample: OpSample, span: StageSpan) {
        self.ops.entry(key).or_default().push(sample);
        let n_spans = self.spans.len();
        let follows = |last: &&mut StageSpan| {
            (last.stage, last.layer) == (span.stage, span.layer)
                && (span.start - last.end).as_nanos() < MAX_PAUSE_NS
        };
        match self.spans.last_mut().filter(follows) {
            Some(last) => last.end = span.end,
            None if n_spans < MAX_SPANS => self.spans.push(span),
            None => {}
        }
    }

    pub(super) fn add_stage(&mut self, stage: Stage, layer: Option<u16>, nanoseconds: u64) {
        *self.stages.entry((stage, layer)).or_default() += nanoseconds;
    }
}
