//! What predicts the routing of a later layer.

use moeflux_backend::Combine;
use moeflux_core::LayerIdx;

use crate::forward_error::ForwardError;
use crate::step::Step;

/// Predicts which experts a later layer will choose.
pub(crate) trait Predict {
    /// The layer that is predicted.
    fn layer(&self) -> LayerIdx;

    /// Predicts while the layer before waits for experts, as if those that are still to come added
    /// nothing. The drive then knows what to read next when it has brought the last of them.
    ///
    /// # Errors
    /// Where the device fails.
    fn look_early(&self, step: &mut Step<'_>, so_far: Combine<'_>) -> Result<(), ForwardError>;
}
