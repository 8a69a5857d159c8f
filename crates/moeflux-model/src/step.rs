//! What one forward pass may touch.

use moeflux_backend::{Backend, Span};
use moeflux_core::TokenId;
use moeflux_store::ExpertStore;

use crate::moe_lists::MoeLists;
use crate::observe::{ExpertObserver, RoutingObserver};
use crate::rows::RowSource;

/// Everything that one forward pass may touch.
pub struct Step<'a> {
    /// The device.
    pub backend: &'a mut dyn Backend,
    /// Where routed experts come from.
    pub experts: &'a ExpertStore,
    /// One token a row. Where the row is embedded it is the one that n-grams count, which the
    /// vocabulary has.
    pub tokens: &'a [TokenId],
    /// The rows that are embeddings, in order.
    pub embedded: &'a [EmbeddedRow<'a>],
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

/// A row whose embedding was computed elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct EmbeddedRow<'a> {
    /// The row of the batch.
    pub row: usize,
    /// Its embedding, `hidden_size` floats, which every stream of the residual begins with as it is.
    pub values: &'a [f32],
    /// What is added to the residual after each of the first layers, `hidden_size` floats each.
    pub deepstack: &'a [&'a [f32]],
}

impl Step<'_> {
    /// Rows of the batch.
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }
}
