//! What one forward pass may touch.

use moeflux_backend::{Backend, Span};
use moeflux_core::TokenId;
use moeflux_store::ExpertStore;

use crate::layers::moe_lists::MoeLists;
use crate::layers::observe::{ExpertObserver, RoutingObserver};

/// Everything that one forward pass may touch.
pub(crate) struct Step<'a> {
    /// The device.
    pub(crate) backend: &'a mut dyn Backend,
    /// Where routed experts come from.
    pub(crate) experts: &'a ExpertStore,
    /// One token a row.
    pub(crate) tokens: &'a [TokenId],
    /// Which sequence and position each row has.
    pub(crate) spans: &'a [Span],
    /// Where the routing is written down, if it is.
    pub(crate) recorder: Option<&'a mut dyn RoutingObserver>,
    /// Sees the inputs of routed experts, while a calibration runs.
    pub(crate) observer: Option<&'a mut dyn ExpertObserver>,
    /// What blocks of experts write down, empty between them.
    pub(crate) lists: &'a mut MoeLists,
}

impl Step<'_> {
    /// Rows of the batch.
    pub(crate) fn rows(&self) -> usize {
        self.tokens.len()
    }
}
