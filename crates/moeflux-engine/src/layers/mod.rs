//! Blocks that model families are built from.

pub(crate) mod attention;
pub(crate) mod decoder;
pub(crate) mod delta_net;
pub(crate) mod dense;
pub(crate) mod indexer;
pub(crate) mod linear;
pub(crate) mod lookahead;
pub(crate) mod mla;
pub(crate) mod moe;
pub(crate) mod mtp;
pub(crate) mod norm;
pub(crate) mod rope;
pub(crate) mod routing;

use moeflux_backend::{Backend, Span};
use moeflux_core::TokenId;
use moeflux_store::ExpertStore;

use self::moe::MoeLists;
use crate::calibrate::ExpertObserver;
use crate::record::Recorder;

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
    pub(crate) recorder: Option<&'a mut Recorder>,
    /// Sees what routed experts are given, where somebody wants to know.
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
