//! The fused ops as sequences of plain ones: their definition, and their implementation on
//! devices without a kernel for them.

use crate::{Cols, DeltaNet, GatedAttention, KeysValues, Mlp, Ops, Projection, Span};

impl GatedAttention {
    /// Runs the parts one by one.
    pub fn run_parts<B: Ops + ?Sized>(self, backend: &mut B, spans: &[Span]) {
        let rows = spans.last().map_or(0, |span| span.rows.end);
        let GatedAttention { v_norm, q_norm, k_norm, rope, attention, gate } = self;
        for norm in [v_norm, q_norm, k_norm].into_iter().flatten() {
            backend.rms_norm(rows, norm);
        }
        backend.rope(attention.q, rope, spans);
        if let Some(KeysValues { k, .. }) = attention.append {
            backend.rope(k, rope, spans);
        }
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

impl Mlp {
    /// The products with the input.
    pub fn first_projections(self) -> impl Iterator<Item = Projection> {
        let (gate, up) = match self {
            Mlp::Gated { gate_proj, gate, up_proj, up, .. } => {
                let gate = Projection { weight: gate_proj, out: gate };
                (Some(gate), Projection { weight: up_proj, out: up })
            }
            Mlp::Plain { up_proj, up, .. } => (None, Projection { weight: up_proj, out: up }),
        };
        gate.into_iter().chain([up])
    }

    /// Runs the parts one by one.
    pub fn run_parts<B: Ops + ?Sized>(self, backend: &mut B, rows: usize, x: Cols, out: Cols) {
        let mut first = self.first_projections();
        match [first.next(), first.next()] {
            [Some(gate), Some(up)] => backend.project(rows, x, &[gate, up]),
            [Some(up), None] => backend.project(rows, x, &[up]),
            _ => {}
        }
        self.finish(backend, rows, out);
    }

    /// Runs what follows the first products.
    pub fn finish<B: Ops + ?Sized>(self, backend: &mut B, rows: usize, out: Cols) {
        let (down_proj, activated) = match self {
            Mlp::Gated { down_proj, activation, gate, up, activated, .. } => {
                backend.activate(rows, activation, activated, gate, up);
                (down_proj, activated)
            }
            Mlp::Plain { down_proj, activation, up, .. } => {
                backend.activate_plain(rows, activation, up);
                (down_proj, up)
            }
        };
        backend.project(rows, activated, &[Projection { weight: down_proj, out }]);
    }
}
