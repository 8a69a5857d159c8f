//! What one forward pass may touch.

use moeflux_backend::{Backend, Span};
use moeflux_core::TokenId;
use moeflux_store::ExpertStore;

use crate::layers::moe_lists::MoeLists;
use crate::layers::observe::{ExpertObserver, RoutingObserver};
use crate::rows::RowSource;

/// Everything that one forward pass may touch.
pub struct Step<'a> {
    /// The device.
    pub backend: &'a mut dyn Backend,
    /// Where routed experts come from.
    pub experts: &'a ExpertStore,
    /// One token a row.
    pub tokens: &'a [TokenId],
    /// Which sequence and position each row has.
    pub spans: &'a [Span],
    /// Where the routing is written down, if it is.
    pub recorder: Option<&'a mut dyn RoutingObserver>,
    /// Sees the inputs of routed experts, while a calibration runs.
    pub observer: Option<&'a mut dyn ExpertObserver>,
    /// Where the rows of tables come from that the tokens need.
    pub rows: &'a mut dyn RowSource,
    /// What blocks of experts write down, empty between them.
    pub lists: &'a mut MoeLists,
}

impl Step<'_> {
    /// Rows of the batch.
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }
}
