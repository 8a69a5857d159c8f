//! The model that a state belongs to, and the device that holds it.

use std::sync::MutexGuard;

use moeflux_model::ModelShape;

use crate::options::Activations;
use crate::step::Core;

/// A model as states see it.
pub(crate) trait Facts {
    /// The name of the family.
    fn family(&self) -> &'static str;
    /// Identifies the weights.
    fn identity(&self) -> &str;
    /// How products treat their inputs.
    fn activations(&self) -> Activations;
    /// The model's figures.
    fn shape(&self) -> &ModelShape;
    /// Positions of a session at most.
    fn max_positions(&self) -> usize;
}

/// A model that is open.
pub(crate) trait Host: Facts {
    /// The device, for as long as the guard lives.
    fn core(&self) -> MutexGuard<'_, Core>;
}

/// The facts of a model without the model.
#[derive(Clone, Debug)]
pub(crate) struct ModelCard {
    pub(crate) family: &'static str,
    pub(crate) identity: String,
    pub(crate) activations: Activations,
    pub(crate) shape: ModelShape,
    pub(crate) max_positions: usize,
}

impl Facts for ModelCard {
    fn family(&self) -> &'static str {
        self.family
    }

    fn identity(&self) -> &str {
        &self.identity
    }

    fn activations(&self) -> Activations {
        self.activations
    }

    fn shape(&self) -> &ModelShape {
        &self.shape
    }

    fn max_positions(&self) -> usize {
        self.max_positions
    }
}
