//! Times of the ops of an engine.

use moeflux_backend::ActivationPrecision;
use moeflux_backend::profiling::{Profiler, WeightFacts};

/// Times the ops of an engine that was opened with
/// [`EngineOptions::timed`](crate::EngineOptions::timed).
#[derive(Debug)]
pub(crate) struct Meter {
    pub(crate) stopwatch: Profiler,
    /// What each weight is called.
    pub(crate) names: Vec<String>,
    /// How experts' products treat their inputs.
    pub(crate) inputs: ActivationPrecision,
}

impl Meter {
    pub(crate) fn new(
        stopwatch: Profiler,
        names: Vec<String>,
        inputs: ActivationPrecision,
    ) -> Meter {
        Meter { stopwatch, names, inputs }
    }

    pub(crate) fn weights(&self) -> Vec<WeightFacts> {
        self.stopwatch.weights()
    }
}
