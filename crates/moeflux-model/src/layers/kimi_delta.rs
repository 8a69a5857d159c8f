//! Kimi delta attention: short convolutions of queries, keys and values, a delta rule whose states decay
//! column by column, and a gated norm (Kimi Team, 2025, "Kimi Linear"; as in transformers'
//! `modeling_kimi_linear`).

use moeflux_backend::{
    Cache, CacheSpec, CausalConv, Cols, Decay, DeltaNet, DeltaRule, GateFunction, GatedRmsNorm,
    Heads, Projection, Stage, StateShape, ValueOrder, Vector, Weight,
};

use moeflux_core::checkpoint::Config;

use super::attention::columns;
use super::norm::{Norm, NormWeights};
use super::recurrent::{a_log, by_taps, conv_shapes};
use crate::layers::builder::Builder;
use crate::layers::mixer::Mixer;
use crate::load::LoadError;
use crate::step::Step;

/// What the layers of a model have in common.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct KimiDeltaShape {
    pub(crate) n_heads: usize,
    /// Columns of a head's query, key and value.
    pub(crate) head_dim: usize,
    /// Taps of the convolutions, the current input included.
    pub(crate) kernel: usize,
    /// What states decay by.
    pub(crate) decay: Decay,
}

/// The object that published configs keep the keys of such layers in.
pub(crate) const LINEAR: &str = "linear_attn_config";

impl KimiDeltaShape {
    /// From the keys of transformers, or those of that object, which count where it has them.
    pub(crate) fn read(config: &Config, decay: Decay) -> Result<KimiDeltaShape, LoadError> {
        if config.get(LINEAR).is_some_and(|value| !value.is_object()) {
            return Err(config.refuse(LINEAR, "be an object").into());
        }
        let nested = config.part(LINEAR);
        let number = |key: &str, own: &str, range| match &nested {
            Some(linear) if linear.get(key).is_some() => linear.usize_in(key, range),
            _ => config.usize_in(own, range),
        };
        Ok(KimiDeltaShape {
            n_heads: number("num_heads", "linear_num_heads", 1..=1024)?,
            head_dim: number("head_dim", "linear_head_dim", 1..=512)?,
            kernel: number("short_conv_kernel_size", "linear_conv_kernel_dim", 2..=64)?,
            decay,
        })
    }

    /// Columns of all queries, all keys or all values.
    fn cols(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Columns of queries, keys and values: the channels of the convolution.
    fn channels(&self) -> usize {
        3 * self.cols()
    }
}

/// Loads layers that share their activations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KimiDeltaBlocks {
    shape: KimiDeltaShape,
    scratch: KimiDeltaScratch,
}

/// Activations; one set serves all layers. Devices compute projections of one buffer together, and read
/// decays and gates of one buffer.
#[derive(Clone, Copy, Debug)]
struct KimiDeltaScratch {
    /// Queries, keys and values before the convolution, `n_heads * head_dim` each.
    q_input: Cols,
    k_input: Cols,
    v_input: Cols,
    /// All three.
    inputs: Cols,
    /// Strengths, before their activation, `n_heads`.
    b: Cols,
    /// What decays are projected from, `head_dim`.
    decay_latent: Cols,
    /// What gates are projected from, `head_dim`.
    gate_latent: Cols,
    /// Queries, keys and values after the convolution.
    convolved: Cols,
    /// Decays, before their activation, `(n_heads, head_dim)`.
    a: Cols,
    /// Gates of the output, `(n_heads, head_dim)`.
    gates: Heads,
    /// `(n_heads, head_dim)`.
    mixed: Heads,
}

/// A matrix from the layer's input to a few columns, and one from there.
#[derive(Clone, Copy, Debug)]
struct TwoSteps {
    into: Weight,
    out: Weight,
}

/// One layer.
#[derive(Debug)]
pub(crate) struct KimiDeltaLayer {
    shape: KimiDeltaShape,
    q_proj: Weight,
    k_proj: Weight,
    v_proj: Weight,
    b_proj: Weight,
    decays: TwoSteps,
    gates: TwoSteps,
    o_proj: Weight,
    conv: Vector,
    conv_cache: Cache,
    of_heads: Vector,
    delta_cache: Cache,
    norm: Norm,
    scratch: KimiDeltaScratch,
}

impl KimiDeltaBlocks {
    /// Allocates what the layers of a model share.
    pub(crate) fn new(shape: KimiDeltaShape, builder: &mut Builder<'_, '_>) -> KimiDeltaBlocks {
        let KimiDeltaShape { n_heads, head_dim, .. } = shape;
        let (cols, build) = (shape.cols(), &mut *builder.build);
        let widths = [shape.channels(), n_heads, head_dim, head_dim];
        let [inputs, b, decay_latent, gate_latent] = build.cols_together(widths);
        let [a, gates] = build.cols_together([cols, cols]);
        let [q_input, k_input, v_input] = [0, 1, 2].map(|i| inputs.slice(i * cols, cols));
        let scratch = KimiDeltaScratch {
            q_input,
            k_input,
            v_input,
            inputs,
            b,
            decay_latent,
            gate_latent,
            convolved: build.cols(shape.channels()),
            a,
            gates: gates.heads(n_heads),
            mixed: build.cols(cols).heads(n_heads),
        };
        KimiDeltaBlocks { shape, scratch }
    }

    /// The layer called `name`.
    pub(crate) fn load(
        &self,
        name: &str,
        builder: &mut Builder<'_, '_>,
    ) -> Result<KimiDeltaLayer, LoadError> {
        let KimiDeltaShape { n_heads, head_dim, kernel, .. } = self.shape;
        let (cols, hidden, eps) = (self.shape.cols(), builder.outline.hidden, builder.outline.eps);
        let part = |part: &str| format!("{name}.{part}");
        // Decays and strengths go through steep functions: their inputs stay as they are.
        let decays = TwoSteps {
            into: builder.gate(&part("f_a_proj"), head_dim, hidden)?,
            out: builder.gate(&part("f_b_proj"), cols, head_dim)?,
        };
        let gates = TwoSteps {
            into: builder.projection(&part("g_a_proj"), head_dim, hidden)?,
            out: builder.projection(&part("g_b_proj"), cols, head_dim)?,
        };
        let weights = &mut *builder.build.weights;
        let norm = Norm::load(weights, &part("o_norm.weight"), head_dim, NormWeights::Plain, eps)?;
        let conv_cache = StateShape::Rows { n: kernel - 1, cols: self.shape.channels() };
        let delta_cache = StateShape::Matrices { n: n_heads, rows: head_dim, cols: head_dim };
        Ok(KimiDeltaLayer {
            shape: self.shape,
            q_proj: builder.projection(&part("q_proj"), cols, hidden)?,
            k_proj: builder.projection(&part("k_proj"), cols, hidden)?,
            v_proj: builder.projection(&part("v_proj"), cols, hidden)?,
            b_proj: builder.gate(&part("b_proj"), n_heads, hidden)?,
            decays,
            gates,
            o_proj: builder.projection(&part("o_proj"), hidden, cols)?,
            conv: self.conv(name, builder)?,
            conv_cache: builder.cache(CacheSpec::State(conv_cache)),
            of_heads: self.of_heads(name, builder)?,
            delta_cache: builder.cache(CacheSpec::State(delta_cache)),
            norm,
            scratch: self.scratch,
        })
    }

    /// The taps of the three convolutions as those of one.
    fn conv(&self, name: &str, builder: &mut Builder<'_, '_>) -> Result<Vector, LoadError> {
        let (cols, kernel) = (self.shape.cols(), self.shape.kernel);
        let weights = &mut *builder.build.weights;
        let mut all = Vec::with_capacity(3 * cols * kernel);
        for part in ["q", "k", "v"] {
            let name = format!("{name}.{part}_conv1d.weight");
            all.extend(weights.vector(&name, &conv_shapes(cols, kernel))?.values);
        }
        Ok(weights.backend().load_vector(&by_taps(&all, self.shape.channels(), kernel)))
    }

    fn of_heads(&self, name: &str, builder: &mut Builder<'_, '_>) -> Result<Vector, LoadError> {
        let mut all = a_log(name, self.shape.n_heads, builder)?;
        let weights = &mut *builder.build.weights;
        all.extend(weights.vector(&format!("{name}.dt_bias"), &[vec![self.shape.cols()]])?.values);
        Ok(weights.backend().load_vector(&all))
    }
}

impl KimiDeltaLayer {
    /// What the layer's mixer computes between the projections.
    fn op(&self) -> DeltaNet {
        let KimiDeltaScratch { inputs, convolved, a, b, gates, mixed, .. } = self.scratch;
        let (n_heads, cols) = (self.shape.n_heads, self.shape.cols());
        let [q, k, v] = [0, 1, 2].map(|i| convolved.slice(i * cols, cols).heads(n_heads));
        let conv = CausalConv {
            out: convolved,
            x: inputs,
            weight: self.conv,
            bias: None,
            cache: self.conv_cache,
        };
        let delta = DeltaRule {
            out: mixed,
            q,
            k,
            v,
            order: ValueOrder::Grouped,
            decay: self.shape.decay,
            a,
            b,
            of_heads: self.of_heads,
            cache: self.delta_cache,
        };
        let norm = GatedRmsNorm {
            norm: self.norm.op(mixed, mixed),
            gate: gates,
            function: GateFunction::Sigmoid,
            gates_input: false,
        };
        DeltaNet { conv, delta, norm }
    }
}

impl Mixer for KimiDeltaLayer {
    fn stage(&self) -> Stage {
        Stage::DeltaNet
    }

    fn forward(&self, step: &mut Step<'_>, out: Cols, x: Cols) {
        let rows = step.rows();
        let scratch = self.scratch;
        let Step { backend, spans, .. } = step;
        let projections = [
            Projection { weight: self.q_proj, out: scratch.q_input },
            Projection { weight: self.k_proj, out: scratch.k_input },
            Projection { weight: self.v_proj, out: scratch.v_input },
            Projection { weight: self.b_proj, out: scratch.b },
            Projection { weight: self.decays.into, out: scratch.decay_latent },
            Projection { weight: self.gates.into, out: scratch.gate_latent },
        ];
        backend.project(rows, x, &projections);
        let decays = Projection { weight: self.decays.out, out: scratch.a };
        backend.project(rows, scratch.decay_latent, &[decays]);
        let gates = Projection { weight: self.gates.out, out: columns(scratch.gates) };
        backend.project(rows, scratch.gate_latent, &[gates]);
        backend.delta_net(self.op(), spans);
        backend.project(rows, columns(scratch.mixed), &[Projection { weight: self.o_proj, out }]);
    }
}
