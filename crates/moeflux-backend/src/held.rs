//! Experts that a device holds.

use moeflux_core::{ExpertId, LayerIdx};

use crate::{Activation, Buf, Cols, ExpertBiases, ExpertRow, Experts, Inputs, Route, SharedExpert};

/// Experts of a layer of which the device has copies of its own.
#[derive(Clone, Copy, Debug)]
pub struct HeldExperts<'a> {
    /// Which layer.
    pub layer: LayerIdx,
    /// What is done with them; it has no calls.
    pub op: Experts<'a>,
    /// The experts, each with its rows, ascending.
    pub calls: &'a [(ExpertId, Vec<ExpertRow>)],
}

/// The experts of a model, of which a device may keep all or some.
#[derive(Clone, Copy, Debug)]
pub struct AllExperts {
    /// Bytes of all of them.
    pub bytes: u64,
    /// Bytes of the largest.
    pub record_bytes: u64,
    /// How many a row gets in a layer.
    pub top_k: usize,
    /// Whether they all stay in the host's memory as long as the device keeps them.
    pub stay: bool,
}

/// The experts of a layer that the device holds, whom it chooses itself.
#[derive(Clone, Copy, Debug)]
pub struct RoutedExperts {
    /// Which layer.
    pub layer: LayerIdx,
    /// How rows choose.
    pub route: Route,
    /// The normalised hidden states.
    pub x: Cols,
    /// How the products treat their inputs.
    pub inputs: Inputs,
    /// What stands between the products.
    pub activation: Activation,
    /// Added to the products, where the family has them.
    pub biases: Option<ExpertBiases>,
    /// Room for one row a chosen expert.
    pub slots: Buf,
    /// The residual stream, to which all of it is added.
    pub acc: Cols,
    /// The shared expert, where there is one, of which nothing is done yet but
    /// the logit that scales it.
    pub shared: Option<SharedExpert>,
}
