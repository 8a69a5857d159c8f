//! GatedDeltaNet: a short convolution, a gated delta rule and a gated norm
//! (Yang et al., 2024; as in transformers' `qwen3_5_moe`).

use moeflux_backend::{
    Cache, CausalConv, Cols, DeltaRule, GatedRmsNorm, Heads, Projection, Vector, Weight,
};

use super::Step;
use super::attention::columns;
use super::norm::Norm;

/// Activations of delta-net layers; one set serves all of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeltaNetScratch {
    /// Queries, keys and values before the convolution.
    pub(crate) qkv: Cols,
    /// And after it.
    pub(crate) convolved: Cols,
    /// `(n_k_heads, k_dim)` of `convolved`.
    pub(crate) q: Heads,
    /// `(n_k_heads, k_dim)` of `convolved`.
    pub(crate) k: Heads,
    /// `(n_v_heads, v_dim)` of `convolved`.
    pub(crate) v: Heads,
    /// Gates of the output, `(n_v_heads, v_dim)`.
    pub(crate) z: Heads,
    /// Decays, before their activation, `n_v_heads`.
    pub(crate) a: Cols,
    /// Strengths, before their activation, `n_v_heads`.
    pub(crate) b: Cols,
    /// `(n_v_heads, v_dim)`.
    pub(crate) mixed: Heads,
}

/// One delta-net layer.
#[derive(Debug)]
pub(crate) struct DeltaNetLayer {
    pub(crate) in_proj_qkv: Weight,
    pub(crate) in_proj_z: Weight,
    pub(crate) in_proj_a: Weight,
    pub(crate) in_proj_b: Weight,
    pub(crate) out_proj: Weight,
    pub(crate) conv: Vector,
    pub(crate) conv_cache: Cache,
    pub(crate) a_log: Vector,
    pub(crate) dt_bias: Vector,
    pub(crate) delta_cache: Cache,
    pub(crate) norm: Norm,
    pub(crate) scratch: DeltaNetScratch,
}

impl DeltaNetLayer {
    /// `out = delta_net(x)`.
    pub(crate) fn forward(&self, step: &mut Step<'_>, out: Cols, x: Cols) {
        let rows = step.rows();
        let DeltaNetScratch { qkv, convolved, q, k, v, z, a, b, mixed } = self.scratch;
        let Step { backend, spans, .. } = step;
        let projections = [
            Projection { weight: self.in_proj_qkv, out: qkv },
            Projection { weight: self.in_proj_z, out: columns(z) },
            Projection { weight: self.in_proj_a, out: a },
            Projection { weight: self.in_proj_b, out: b },
        ];
        backend.project(rows, x, &projections);
        let conv = CausalConv { out: convolved, x: qkv, weight: self.conv, cache: self.conv_cache };
        backend.causal_conv(conv, spans);
        let delta = DeltaRule {
            out: mixed,
            q,
            k,
            v,
            a,
            b,
            a_log: self.a_log,
            dt_bias: self.dt_bias,
            cache: self.delta_cache,
        };
        backend.delta_rule(delta, spans);
        backend.gated_rms_norm(rows, GatedRmsNorm { norm: self.norm.op(mixed, mixed), gate: z });
        backend.project(rows, columns(mixed), &[Projection { weight: self.out_proj, out }]);
    }
}
