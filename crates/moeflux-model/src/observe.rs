//! Sees what a forward pass does with experts: for calibration, and for routing traces.

use std::sync::{Arc, Mutex, PoisonError};

use moeflux_backend::{Backend, Cols, DeviceError, Experts, Routing};
use moeflux_core::{ExpertId, LayerIdx};

/// Sees the experts of a layer before they run; `weights` is how much each
/// slot's output counts. Output slots are its own until the experts run.
pub trait ExpertObserver: Send {
    /// Sees all rows of a layer, and `weights.len() / rows` experts that each
    /// of them goes to, before any of these runs.
    ///
    /// # Errors
    /// Where the device fails.
    fn routed(
        &mut self,
        backend: &mut dyn Backend,
        layer: LayerIdx,
        x: Cols,
        experts: &[ExpertId],
        top_k: usize,
        weights: &[f32],
    ) -> Result<(), DeviceError>;

    /// # Errors
    /// Where the device fails.
    fn see(
        &mut self,
        backend: &mut dyn Backend,
        layer: LayerIdx,
        op: Experts<'_>,
        weights: &[f32],
    ) -> Result<(), DeviceError>;
}

/// An observer that its owner reads when the steps have run.
impl<T: ExpertObserver> ExpertObserver for Arc<Mutex<T>> {
    fn routed(
        &mut self,
        backend: &mut dyn Backend,
        layer: LayerIdx,
        x: Cols,
        experts: &[ExpertId],
        top_k: usize,
        weights: &[f32],
    ) -> Result<(), DeviceError> {
        let mut observer = self.lock().unwrap_or_else(PoisonError::into_inner);
        observer.routed(backend, layer, x, experts, top_k, weights)
    }

    fn see(
        &mut self,
        backend: &mut dyn Backend,
        layer: LayerIdx,
        op: Experts<'_>,
        weights: &[f32],
    ) -> Result<(), DeviceError> {
        self.lock().unwrap_or_else(PoisonError::into_inner).see(backend, layer, op, weights)
    }
}

/// Sees what routers choose, layer by layer.
pub trait RoutingObserver {
    /// What was predicted for every row of a layer that is still to come.
    fn predicted(&mut self, layer: LayerIdx, experts: Vec<ExpertId>);

    /// What a layer's router chose for every row, and the best scores of every row.
    fn routed(&mut self, layer: LayerIdx, chosen: &[ExpertId], scores: Routing);
}
