//! Arguments of ops that combine several others, which a device may run as one kernel.

use super::{
    Activation, Attention, CausalConv, Cols, DeltaRule, GatedRmsNorm, Heads, RmsNorm, Rope, Shared,
    Weight,
};

/// Arguments of [`Ops::gated_attention`](crate::Ops::gated_attention): the ops between the
/// projections of an attention layer, in this order.
#[derive(Clone, Copy, Debug)]
pub struct GatedAttention {
    /// Norms of queries and of keys, in place.
    pub norms: Option<(RmsNorm, RmsNorm)>,
    /// The rotation of queries and keys.
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

/// The expert that every row uses, in
/// [`ExpertResidency::moe_on_device`](crate::ExpertResidency::moe_on_device).
#[derive(Clone, Copy, Debug)]
pub struct SharedExpert {
    /// The gate projection.
    pub gate_proj: Weight,
    /// The up projection.
    pub up_proj: Weight,
    /// The down projection, which multiplies the activation of gate and up.
    pub down_proj: Weight,
    /// The activation.
    pub activation: Activation,
    /// Scratch memory for the output of `gate_proj`.
    pub gate: Cols,
    /// Scratch memory for the output of `up_proj`.
    pub up: Cols,
    /// Scratch memory for the input of `down_proj`.
    pub activated: Cols,
    /// Scratch memory for the output, and the logit that scales it.
    pub shared: Shared,
}
