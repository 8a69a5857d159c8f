//! Arguments of ops that combine several others, which a device may run as one kernel.

use moeflux_core::ExpertParts;

use super::{
    Attention, CausalConv, Cols, DeltaRule, ExpertFunction, GatedActivation, GatedRmsNorm, Heads,
    PlainActivation, RmsNorm, Rope, Shared, Weight,
};

/// Arguments of [`Ops::gated_attention`](crate::Ops::gated_attention): the ops between the
/// projections of an attention layer, in this order.
#[derive(Clone, Copy, Debug)]
pub struct GatedAttention {
    /// The norm of values that are appended, of themselves or of what keys are before their norm.
    pub v_norm: Option<RmsNorm>,
    /// The norm of queries, in place.
    pub q_norm: Option<RmsNorm>,
    /// The norm of keys that are appended, in place.
    pub k_norm: Option<RmsNorm>,
    /// The rotation of queries, and of keys that are appended.
    pub rope: Rope,
    /// The attention.
    pub attention: Attention,
    /// The output is multiplied by the sigmoid of this.
    pub gate: Option<Heads>,
}

/// Arguments of [`Ops::delta_net`](crate::Ops::delta_net): the ops between the projections
/// of a gated delta net, in this order.
#[derive(Clone, Copy, Debug)]
pub struct DeltaNet {
    /// The convolution.
    pub conv: CausalConv,
    /// The delta rule, which reads the convolution's output.
    pub delta: DeltaRule,
    /// The norm of the delta rule's output.
    pub norm: GatedRmsNorm,
}

/// A multilayer perceptron that every row gets, and scratch memory for what is between its products.
#[derive(Clone, Copy, Debug)]
pub enum Mlp {
    /// `down(activation(gate(x), up(x)))`.
    Gated {
        /// The gate projection.
        gate_proj: Weight,
        /// The up projection.
        up_proj: Weight,
        /// The down projection.
        down_proj: Weight,
        /// What stands between the products.
        activation: GatedActivation,
        /// Scratch memory for the output of `gate_proj`.
        gate: Cols,
        /// Scratch memory for the output of `up_proj`.
        up: Cols,
        /// Scratch memory for the input of `down_proj`.
        activated: Cols,
    },
    /// `down(activation(up(x)))`.
    Plain {
        /// The up projection.
        up_proj: Weight,
        /// The down projection.
        down_proj: Weight,
        /// What stands between the products.
        activation: PlainActivation,
        /// Scratch memory for the output of `up_proj`, which the activation replaces.
        up: Cols,
    },
}

impl Mlp {
    /// The matrices.
    pub fn weights(self) -> ExpertParts<Weight> {
        match self {
            Mlp::Gated { gate_proj, up_proj, down_proj, .. } => {
                ExpertParts::three([gate_proj, up_proj, down_proj])
            }
            Mlp::Plain { up_proj, down_proj, .. } => {
                ExpertParts { gate: None, up: up_proj, down: down_proj }
            }
        }
    }

    /// What a routed expert computes that computes the same.
    pub fn function(self) -> ExpertFunction {
        match self {
            Mlp::Gated { activation, .. } => ExpertFunction::gated(activation),
            Mlp::Plain { activation, .. } => ExpertFunction::Plain(activation),
        }
    }
}

/// The expert that every row uses, in
/// [`ExpertResidency::moe_on_device`](crate::ExpertResidency::moe_on_device).
#[derive(Clone, Copy, Debug)]
pub struct SharedExpert {
    /// The expert.
    pub mlp: Mlp,
    /// Scratch memory for the output, and the logit that scales it.
    pub shared: Shared,
}
