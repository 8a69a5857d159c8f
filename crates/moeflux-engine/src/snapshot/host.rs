//! The model that a state belongs to, and the device that holds it.

use std::sync::MutexGuard;

use moeflux_model::ModelShape;

use crate::options::Activations;
use crate::step::Core;

/// A model as states see it.
pub(crate) trait Host {
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
    /// The device, for as long as the guard lives.
    fn core(&self) -> MutexGuard<'_, Core>;
}
