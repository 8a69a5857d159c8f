//! The fused ops as sequences of plain ones: their definition, and their implementation on
//! devices without a kernel for them.

use crate::{Cols, DeltaNet, GatedAttention, Ops, Projection, SharedExpert, Span};

impl GatedAttention {
    /// Runs the parts one by one.
    pub fn run_parts<B: Ops + ?Sized>(self, backend: &mut B, spans: &[Span]) {
        let rows = spans.last().map_or(0, |span| span.rows.end);
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

impl DeltaNet {
    /// Runs the parts one by one.
    pub fn run_parts<B: Ops + ?Sized>(self, backend: &mut B, spans: &[Span]) {
        let rows = spans.last().map_or(0, |span| span.rows.end);
        backend.causal_conv(self.conv, spans);
        backend.delta_rule(self.delta, spans);
        backend.gated_rms_norm(rows, self.norm);
    }
}

impl SharedExpert {
    /// Runs the parts one by one, without the addition of the output to the residual stream.
    pub fn run_parts<B: Ops + ?Sized>(self, backend: &mut B, rows: usize, x: Cols) {
        let SharedExpert { gate_proj, up_proj, down_proj, gate, up, activated, shared, .. } = self;
        let first =
            [Projection { weight: gate_proj, out: gate }, Projection { weight: up_proj, out: up }];
        backend.project(rows, x, &first);
        backend.activate(rows, self.activation, activated, gate, up);
        backend.project(rows, activated, &[Projection { weight: down_proj, out: shared.out }]);
    }
}
