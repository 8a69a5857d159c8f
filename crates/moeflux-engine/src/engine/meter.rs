//! Times of the ops of an engine.

use moeflux_backend::Inputs;
use moeflux_backend::timed::{Stopwatch, WeightFacts};

/// Times the ops of an engine that was opened with
/// [`EngineOptions::timed`](crate::EngineOptions::timed).
#[derive(Debug)]
pub(crate) struct Meter {
    pub(crate) stopwatch: Stopwatch,
    /// What each weight is called.
    pub(crate) names: Vec<String>,
    /// How experts' products treat their inputs.
    pub(crate) inputs: Inputs,
}

impl Meter {
    pub(crate) fn new(stopwatch: Stopwatch, names: Vec<String>, inputs: Inputs) -> Meter {
        Meter { stopwatch, names, inputs }
    }

    pub(crate) fn weights(&self) -> Vec<WeightFacts> {
        self.stopwatch.weights()
    }
}
