//! Ops that stand for several in a row, which a device may run together.

use crate::{
    Attention, Backend, CausalConv, Cols, DeltaRule, GatedRmsNorm, Heads, Projection, RmsNorm,
    Rope, Shared, Span, Weight,
};

/// What an attention layer does between its projections, as
/// [`Backend::gated_attention`](crate::Backend::gated_attention) says.
#[derive(Clone, Copy, Debug)]
pub struct GatedAttention {
    /// First queries and keys are normalised in place, in this order,
    pub norms: Option<(RmsNorm, RmsNorm)>,
    /// then both rotated,
    pub rope: Rope,
    /// then attended with,
    pub attention: Attention,
    /// and what comes out is multiplied by the sigmoid of this.
    pub gate: Option<Heads>,
}

impl GatedAttention {
    /// Its parts, one by one.
    pub fn run_parts<B: Backend + ?Sized>(self, backend: &mut B, spans: &[Span]) {
        let rows = spans.last().map_or(0, |it| it.rows.end);
        let GatedAttention { norms, rope, attention, gate } = self;
        if let Some((of_queries, of_keys)) = norms {
            backend.rms_norm(rows, of_queries);
            backend.rms_norm(rows, of_keys);
        }
        backend.rope(attention.q, rope, spans);
        backend.rope(attention.k, rope, spans);
        backend.attention(attention, spans);
        if let Some(gate) = gate {
            backend.sigmoid_gate(rows, attention.out, gate);
        }
    }
}

/// What a delta net does between its projections, as
/// [`Backend::delta_net`](crate::Backend::delta_net) says.
#[derive(Clone, Copy, Debug)]
pub struct DeltaNet {
    /// First a convolution,
    pub conv: CausalConv,
    /// then the delta rule on what comes out,
    pub delta: DeltaRule,
    /// then a norm of what that gives.
    pub norm: GatedRmsNorm,
}

impl DeltaNet {
    /// Its parts, one by one.
    pub fn run_parts<B: Backend + ?Sized>(self, backend: &mut B, spans: &[Span]) {
        let rows = spans.last().map_or(0, |it| it.rows.end);
        backend.causal_conv(self.conv, spans);
        backend.delta_rule(self.delta, spans);
        backend.gated_rms_norm(rows, self.norm);
    }
}

/// An expert that every row gets, as
/// [`Backend::routed_experts`](crate::Backend::routed_experts) runs it beside
/// those that rows choose.
#[derive(Clone, Copy, Debug)]
pub struct SharedExpert {
    /// Multiplies the input, as the next one does.
    pub gate_proj: Weight,
    /// What gives the other factor.
    pub up_proj: Weight,
    /// Multiplies `silu(gate) * up`.
    pub down_proj: Weight,
    /// Room for what the first matrix gives.
    pub gate: Cols,
    /// Room for what the second one gives.
    pub up: Cols,
    /// Room for the last one's input.
    pub activated: Cols,
    /// Room for the output, and the logit that scales it.
    pub shared: Shared,
}

impl SharedExpert {
    /// Its parts, one by one: what is left is to add its output.
    pub fn run_parts<B: Backend + ?Sized>(self, backend: &mut B, rows: usize, x: Cols) {
        let SharedExpert { gate_proj, up_proj, down_proj, gate, up, activated, shared } = self;
        let first =
            [Projection { weight: gate_proj, out: gate }, Projection { weight: up_proj, out: up }];
        backend.project(rows, x, &first);
        backend.swiglu(rows, activated, gate, up);
        backend.project(rows, activated, &[Projection { weight: down_proj, out: shared.out }]);
    }
}
