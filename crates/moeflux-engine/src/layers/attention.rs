//! Grouped-query attention with normalised queries and keys, partial rotary
//! embedding and, where the family has it, an output gate.

use moeflux_backend::{Attention, Cache, Cols, Heads, Projection, Rope, Weight};

use super::Step;
use super::norm::Norm;

/// Activations of attention layers; one set serves all of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionScratch {
    /// Queries and, interleaved head by head, their gates.
    pub(crate) q: Heads,
    /// Gates of the output, where the family has them.
    pub(crate) gate: Option<Heads>,
    /// `(n_kv_heads, head_dim)`.
    pub(crate) k: Heads,
    /// `(n_kv_heads, head_dim)`.
    pub(crate) v: Heads,
    /// `(n_heads, head_dim)`.
    pub(crate) mixed: Heads,
}

/// One attention layer.
#[derive(Debug)]
pub(crate) struct AttentionLayer {
    /// The columns of `q` and `gate` together.
    pub(crate) q_cols: Cols,
    pub(crate) q_proj: Weight,
    pub(crate) k_proj: Weight,
    pub(crate) v_proj: Weight,
    pub(crate) o_proj: Weight,
    pub(crate) q_norm: Norm,
    pub(crate) k_norm: Norm,
    pub(crate) rope: Rope,
    pub(crate) cache: Cache,
    pub(crate) scratch: AttentionScratch,
}

impl AttentionLayer {
    /// `out = attention(x)`.
    pub(crate) fn forward(&self, step: &mut Step<'_>, out: Cols, x: Cols) {
        let rows = step.rows();
        let AttentionScratch { q, gate, k, v, mixed } = self.scratch;
        let projections = [
            Projection { weight: self.q_proj, out: self.q_cols },
            Projection { weight: self.k_proj, out: columns(k) },
            Projection { weight: self.v_proj, out: columns(v) },
        ];
        let Step { backend, spans, .. } = step;
        backend.project(rows, x, &projections);
        backend.rms_norm(rows, self.q_norm.op(q, q));
        backend.rms_norm(rows, self.k_norm.op(k, k));
        backend.rope(q, self.rope, spans);
        backend.rope(k, self.rope, spans);
        let scale = 1.0 / (q.head_dim as f32).sqrt();
        let op = Attention {
            out: mixed,
            q,
            k,
            v: Some(v),
            cache: self.cache,
            scale,
            window: None,
            sinks: None,
            selection: None,
        };
        backend.attention(op, spans);
        if let Some(gate) = gate {
            backend.sigmoid_gate(rows, mixed, gate);
        }
        backend.project(rows, columns(mixed), &[Projection { weight: self.o_proj, out }]);
    }
}

/// The columns of adjacent heads.
pub(crate) fn columns(heads: Heads) -> Cols {
    assert_eq!(heads.stride, heads.head_dim, "only adjacent heads are one run of columns");
    Cols { buf: heads.buf, start: heads.start, len: heads.n_heads * heads.head_dim }
}
