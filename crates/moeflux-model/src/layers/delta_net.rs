//! GatedDeltaNet: a short convolution, a gated delta rule and a gated norm
//! (Yang et al., 2024; as in transformers' `qwen3_5_moe` and `qwen3_next`).

use moeflux_backend::{
    Cache, CacheSpec, CausalConv, Cols, Decay, DeltaNet, DeltaRule, GateFunction, GatedRmsNorm,
    Heads, Projection, Stage, StateShape, ValueOrder, Vector, Weight,
};
use moeflux_core::checkpoint::Config;
use serde_json::Value;

use super::attention::columns;
use super::norm::{Norm, NormWeights};
use super::recurrent::{a_log, by_taps, conv_name, conv_shapes};
use crate::layers::builder::Builder;
use crate::layers::mixer::Mixer;
use crate::load::LoadError;
use crate::model::Build;
use crate::step::Step;

/// What the delta-net layers of a model have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeltaNetShape {
    pub(crate) n_k_heads: usize,
    pub(crate) n_v_heads: usize,
    pub(crate) k_dim: usize,
    pub(crate) v_dim: usize,
    /// Taps of the convolution, the current input included.
    pub(crate) kernel: usize,
    /// Which key head a value head reads.
    pub(crate) order: ValueOrder,
    /// What gates of the output go through.
    pub(crate) gate: GateFunction,
}

impl DeltaNetShape {
    pub(crate) fn read(config: &Config) -> Result<DeltaNetShape, LoadError> {
        let shape = DeltaNetShape {
            n_k_heads: config.usize("linear_num_key_heads")?,
            n_v_heads: config.usize("linear_num_value_heads")?,
            k_dim: config.usize("linear_key_head_dim")?,
            v_dim: config.usize("linear_value_head_dim")?,
            kernel: config.usize("linear_conv_kernel_dim")?,
            order: value_order(config)?,
            gate: GateFunction::Silu,
        };
        if !shape.n_v_heads.is_multiple_of(shape.n_k_heads) {
            let rule = "divide linear_num_value_heads";
            return Err(config.refuse("linear_num_key_heads", rule).into());
        }
        if shape.kernel < 2 {
            return Err(config.refuse("linear_conv_kernel_dim", "be at least 2").into());
        }
        Ok(shape)
    }

    /// Columns of all queries, or of all keys.
    pub(crate) fn k_cols(&self) -> usize {
        self.n_k_heads * self.k_dim
    }

    /// Columns of all values.
    pub(crate) fn v_cols(&self) -> usize {
        self.n_v_heads * self.v_dim
    }

    /// Columns of queries, keys and values: the channels of the convolution.
    pub(crate) fn channels(&self) -> usize {
        2 * self.k_cols() + self.v_cols()
    }

    /// How a checkpoint stores its norms: Hugging Face zero-centred, while
    /// MLX's conversion adds one to them and moves the taps of convolutions,
    /// whose shape thereby tells. `name` is that of any delta-net layer.
    pub(crate) fn stored_norms(
        &self,
        name: &str,
        build: &mut Build<'_>,
    ) -> Result<NormWeights, LoadError> {
        let conv =
            build.weights.vector(&conv_name(name), &conv_shapes(self.channels(), self.kernel))?;
        let is_torch = conv.shape == [self.channels(), 1, self.kernel];
        Ok(if is_torch { NormWeights::ZeroCentred } else { NormWeights::Plain })
    }
}

/// The order of value heads: as published, unless the config says that they are tiled.
fn value_order(config: &Config) -> Result<ValueOrder, LoadError> {
    let key = "linear_value_head_order";
    match config.get(key).and_then(Value::as_str) {
        None if config.get(key).is_none() => Ok(ValueOrder::Grouped),
        Some("grouped") => Ok(ValueOrder::Grouped),
        Some("tiled") => Ok(ValueOrder::Tiled),
        _ => Err(config.refuse(key, "be \"grouped\" or \"tiled\"").into()),
    }
}

/// Which layers attend to everything: `layer_types` where the config has it,
/// else every `full_attention_interval`th.
pub(crate) fn full_attention_layers(
    config: &Config,
    n_layers: usize,
) -> Result<Vec<bool>, LoadError> {
    full_attention_layers_named(config, n_layers, &["full_attention"])
}

/// The same where such layers have any of these names.
pub(crate) fn full_attention_layers_named(
    config: &Config,
    n_layers: usize,
    full: &[&str],
) -> Result<Vec<bool>, LoadError> {
    let Some(types) = config.str_list("layer_types")? else {
        let interval = config.usize("full_attention_interval")?;
        return Ok((0..n_layers).map(|i| (i + 1).is_multiple_of(interval)).collect());
    };
    if types.len() != n_layers {
        return Err(config.refuse("layer_types", "have num_hidden_layers entries").into());
    }
    let is_full = |name: &&str| match *name {
        name if full.contains(&name) => Ok(true),
        "linear_attention" => Ok(false),
        _ => {
            let full: Vec<String> = full.iter().map(|name| format!("{name:?}")).collect();
            let rule = format!("hold only {} and \"linear_attention\"", full.join(", "));
            Err(config.refuse("layer_types", &rule).into())
        }
    };
    types.iter().map(is_full).collect()
}

/// Loads delta-net layers that share their activations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeltaNetBlocks {
    pub(crate) shape: DeltaNetShape,
    scratch: DeltaNetScratch,
}

/// Activations of delta-net layers; one set serves all of them.
#[derive(Clone, Copy, Debug)]
struct DeltaNetScratch {
    /// Queries, keys and values before the convolution.
    qkv: Cols,
    /// And after it.
    convolved: Cols,
    /// `(n_k_heads, k_dim)` of `convolved`.
    q: Heads,
    /// `(n_k_heads, k_dim)` of `convolved`.
    k: Heads,
    /// `(n_v_heads, v_dim)` of `convolved`.
    v: Heads,
    /// Gates of the output, `(n_v_heads, v_dim)`.
    z: Heads,
    /// Decays, before their activation, `n_v_heads`.
    a: Cols,
    /// Strengths, before their activation, `n_v_heads`.
    b: Cols,
    /// `(n_v_heads, v_dim)`.
    mixed: Heads,
}

/// The projections of a layer's input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InProjections {
    /// To all queries, all keys, all values.
    pub(crate) qkv: Weight,
    /// To the gates of the output.
    pub(crate) z: Weight,
    /// To decays.
    pub(crate) a: Weight,
    /// To strengths.
    pub(crate) b: Weight,
}

/// One delta-net layer.
#[derive(Debug)]
pub(crate) struct DeltaNetLayer {
    input: InProjections,
    out_proj: Weight,
    conv: Vector,
    conv_cache: Cache,
    of_heads: Vector,
    delta_cache: Cache,
    order: ValueOrder,
    gate: GateFunction,
    norm: Norm,
    scratch: DeltaNetScratch,
}

impl DeltaNetBlocks {
    /// Allocates what the delta-net layers of a model share.
    pub(crate) fn new(shape: DeltaNetShape, builder: &mut Builder<'_, '_>) -> DeltaNetBlocks {
        let DeltaNetShape { n_k_heads, n_v_heads, .. } = shape;
        let (k_cols, v_cols) = (shape.k_cols(), shape.v_cols());
        let convolved = builder.build.cols(shape.channels());
        let widths = [shape.channels(), v_cols, n_v_heads, n_v_heads];
        let [qkv, z, a, b] = builder.build.cols_together(widths);
        let scratch = DeltaNetScratch {
            qkv,
            convolved,
            q: convolved.slice(0, k_cols).heads(n_k_heads),
            k: convolved.slice(k_cols, k_cols).heads(n_k_heads),
            v: convolved.slice(2 * k_cols, v_cols).heads(n_v_heads),
            z: z.heads(n_v_heads),
            a,
            b,
            mixed: builder.build.cols(v_cols).heads(n_v_heads),
        };
        DeltaNetBlocks { shape, scratch }
    }

    /// The layer called `name`, whose input projections are loaded already.
    pub(crate) fn load(
        &self,
        name: &str,
        input: InProjections,
        builder: &mut Builder<'_, '_>,
    ) -> Result<DeltaNetLayer, LoadError> {
        let DeltaNetShape { n_v_heads, k_dim, v_dim, kernel, .. } = self.shape;
        let (channels, v_cols) = (self.shape.channels(), self.shape.v_cols());
        let (hidden, eps) = (builder.outline.hidden, builder.outline.eps);
        let weights = &mut *builder.build.weights;
        let norm = format!("{name}.norm.weight");
        let norm = Norm::load(weights, &norm, v_dim, NormWeights::Plain, eps)?;
        let conv = weights.vector(&conv_name(name), &conv_shapes(channels, kernel))?;
        let conv = weights.backend().load_vector(&by_taps(&conv.values, channels, kernel));
        let mut of_heads = a_log(name, n_v_heads, builder)?;
        let weights = &mut *builder.build.weights;
        of_heads.extend(weights.vector(&format!("{name}.dt_bias"), &[vec![n_v_heads]])?.values);
        let of_heads = weights.backend().load_vector(&of_heads);
        Ok(DeltaNetLayer {
            input,
            out_proj: builder.projection(&format!("{name}.out_proj"), hidden, v_cols)?,
            conv,
            conv_cache: builder
                .cache(CacheSpec::State(StateShape::Rows { n: kernel - 1, cols: channels })),
            of_heads,
            delta_cache: builder.cache(CacheSpec::State(StateShape::Matrices {
                n: n_v_heads,
                rows: v_dim,
                cols: k_dim,
            })),
            order: self.shape.order,
            gate: self.shape.gate,
            norm,
            scratch: self.scratch,
        })
    }
}

impl Mixer for DeltaNetLayer {
    fn stage(&self) -> Stage {
        Stage::DeltaNet
    }

    fn forward(&self, step: &mut Step<'_>, out: Cols, x: Cols) {
        let rows = step.rows();
        let DeltaNetScratch { qkv, convolved, q, k, v, z, a, b, mixed } = self.scratch;
        let Step { backend, spans, .. } = step;
        let projections = [
            Projection { weight: self.input.qkv, out: qkv },
            Projection { weight: self.input.z, out: columns(z) },
            Projection { weight: self.input.a, out: a },
            Projection { weight: self.input.b, out: b },
        ];
        backend.project(rows, x, &projections);
        let conv = CausalConv {
            out: convolved,
            x: qkv,
            weight: self.conv,
            bias: None,
            cache: self.conv_cache,
        };
        let delta = DeltaRule {
            out: mixed,
            q,
            k,
            v,
            order: self.order,
            decay: Decay::Head,
            a,
            b,
            of_heads: self.of_heads,
            cache: self.delta_cache,
        };
        let norm = GatedRmsNorm {
            norm: self.norm.op(mixed, mixed),
            gate: z,
            function: self.gate,
            gates_input: false,
        };
        backend.delta_net(DeltaNet { conv, delta, norm }, spans);
        backend.project(rows, columns(mixed), &[Projection { weight: self.out_proj, out }]);
    }
}
