//! Qwen3.5 and Qwen3.6 mixture-of-experts models: GatedDeltaNet layers with
//! gated full attention every few layers, softmax routing, a gated shared
//! expert. As in transformers' `modeling_qwen3_5_moe`.

use moeflux_backend::{
    Activation, Cache, CacheSpec, Cols, Heads, Rope, RopePairs, RopeSpec, Scoring, Weight,
};
use moeflux_core::LayerIdx;
use moeflux_core::checkpoint::Config;
use moeflux_core::manifest::{ExpertsDecl, FusedOrder, Role};

use super::{Build, Family, Model, ModelShape};
use crate::error::EngineError;
use crate::layers::Step;
use crate::layers::attention::{AttentionLayer, AttentionScratch};
use crate::layers::delta_net::{DeltaNetLayer, DeltaNetScratch};
use crate::layers::moe::{Moe, MoeScratch, SharedExpert, SharedScratch};
use crate::layers::norm::{Norm, NormWeights};
use crate::load::LoadError;

pub(crate) const FAMILY: Family = Family {
    name: "qwen3_5_moe",
    model_types: &["qwen3_5_moe", "qwen3_5_moe_text"],
    build: |config, build| Ok(Box::new(Qwen35Moe::build(config, build)?)),
};

/// The model.
struct Qwen35Moe {
    shape: ModelShape,
    embed_tokens: Weight,
    layers: Vec<Layer>,
    norm: Norm,
    lm_head: Weight,
    hidden: Cols,
    normed: Cols,
    /// A mixer's output, before it joins the residual stream.
    mixed: Cols,
}

struct Layer {
    idx: LayerIdx,
    input_norm: Norm,
    mixer: Mixer,
    post_norm: Norm,
    moe: Moe,
}

enum Mixer {
    Attention(AttentionLayer),
    DeltaNet(DeltaNetLayer),
}

/// The config, under the names that the layers use.
struct Shape {
    hidden: usize,
    n_layers: usize,
    vocab: usize,
    eps: f32,
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
    rotary_dim: usize,
    rope_theta: f32,
    n_k_heads: usize,
    n_v_heads: usize,
    k_dim: usize,
    v_dim: usize,
    kernel: usize,
    n_experts: usize,
    config_top_k: usize,
    intermediate: usize,
    shared_intermediate: usize,
    is_full_attention: Vec<bool>,
    tied: bool,
    max_positions: usize,
}

impl Shape {
    fn read(config: &Config) -> Result<Shape, LoadError> {
        let n_layers = config.usize("num_hidden_layers")?;
        let head_dim = config.usize("head_dim")?;
        let rotary_factor = config.rope_f32("partial_rotary_factor")?.unwrap_or(0.25);
        let rotary_dim = (head_dim as f32 * rotary_factor) as usize;
        let shape = Shape {
            hidden: config.usize("hidden_size")?,
            n_layers,
            vocab: config.usize("vocab_size")?,
            eps: config.f32_or("rms_norm_eps", 1e-6)?,
            n_heads: config.usize("num_attention_heads")?,
            n_kv_heads: config.usize("num_key_value_heads")?,
            head_dim,
            rotary_dim,
            rope_theta: config.rope_f32("rope_theta")?.unwrap_or(10_000.0),
            n_k_heads: config.usize("linear_num_key_heads")?,
            n_v_heads: config.usize("linear_num_value_heads")?,
            k_dim: config.usize("linear_key_head_dim")?,
            v_dim: config.usize("linear_value_head_dim")?,
            kernel: config.usize("linear_conv_kernel_dim")?,
            n_experts: config.usize("num_experts")?,
            config_top_k: config.usize("num_experts_per_tok")?,
            intermediate: config.usize("moe_intermediate_size")?,
            shared_intermediate: config.usize("shared_expert_intermediate_size")?,
            is_full_attention: full_attention_layers(config, n_layers)?,
            tied: config.bool_or("tie_word_embeddings", false)?,
            max_positions: config.usize_or("max_position_embeddings", 32_768)?,
        };
        shape.check(config)?;
        Ok(shape)
    }

    fn check(&self, config: &Config) -> Result<(), LoadError> {
        let rules = [
            (
                self.n_heads.is_multiple_of(self.n_kv_heads),
                "num_key_value_heads",
                "divide num_attention_heads",
            ),
            (
                self.n_v_heads.is_multiple_of(self.n_k_heads),
                "linear_num_key_heads",
                "divide linear_num_value_heads",
            ),
            (
                self.rotary_dim.is_multiple_of(2),
                "partial_rotary_factor",
                "give an even number of rotary columns",
            ),
            (self.rotary_dim <= self.head_dim, "partial_rotary_factor", "be at most 1"),
            (self.rope_theta > 1.0, "rope_theta", "be above 1"),
            (self.kernel >= 2, "linear_conv_kernel_dim", "be at least 2"),
            (self.config_top_k <= self.n_experts, "num_experts_per_tok", "be at most num_experts"),
        ];
        for (holds, key, rule) in rules {
            if !holds {
                return Err(config.refuse(key, rule).into());
            }
        }
        config.require_default("rope_type", "default")?;
        config.require_default("hidden_act", "silu")?;
        if config.bool_or("attention_bias", false)? {
            return Err(config.refuse("attention_bias", "be false").into());
        }
        Ok(())
    }

    fn qkv_cols(&self) -> usize {
        2 * self.n_k_heads * self.k_dim + self.n_v_heads * self.v_dim
    }

    fn rope(&self) -> RopeSpec {
        // Single-precision steps, as the reference computes them.
        let frequency = |i: usize| {
            let exponent = (2 * i) as f32 / self.rotary_dim as f32;
            1.0 / f64::from(self.rope_theta).powf(f64::from(exponent)) as f32
        };
        RopeSpec {
            inv_freq: (0..self.rotary_dim / 2).map(frequency).collect(),
            pairs: RopePairs::Halves,
            scale: 1.0,
        }
    }
}

/// `layer_types` where the config has it, else every `full_attention_interval`th.
fn full_attention_layers(config: &Config, n_layers: usize) -> Result<Vec<bool>, LoadError> {
    let Some(types) = config.str_list("layer_types")? else {
        let interval = config.usize_or("full_attention_interval", 4)?;
        return Ok((0..n_layers).map(|i| (i + 1).is_multiple_of(interval)).collect());
    };
    if types.len() != n_layers {
        return Err(config.refuse("layer_types", "have num_hidden_layers entries").into());
    }
    let is_full = |it: &&str| match *it {
        "full_attention" => Ok(true),
        "linear_attention" => Ok(false),
        _ => {
            let rule = "hold only \"full_attention\" and \"linear_attention\"";
            Err(config.refuse("layer_types", rule).into())
        }
    };
    types.iter().map(is_full).collect()
}

/// Activations, shared by all layers of a kind.
struct Scratch {
    attention: AttentionScratch,
    q_cols: Cols,
    delta_net: DeltaNetScratch,
    moe: MoeScratch,
    shared: SharedScratch,
}

impl Scratch {
    fn alloc(shape: &Shape, top_k: usize, build: &mut Build<'_>) -> Scratch {
        let q_cols = build.cols(2 * shape.n_heads * shape.head_dim);
        let interleaved = |start| Heads {
            buf: q_cols.buf,
            start,
            n_heads: shape.n_heads,
            head_dim: shape.head_dim,
            stride: 2 * shape.head_dim,
        };
        let kv_cols = shape.n_kv_heads * shape.head_dim;
        let attention = AttentionScratch {
            q: interleaved(0),
            gate: Some(interleaved(shape.head_dim)),
            k: build.cols(kv_cols).heads(shape.n_kv_heads),
            v: build.cols(kv_cols).heads(shape.n_kv_heads),
            mixed: build.cols(shape.n_heads * shape.head_dim).heads(shape.n_heads),
        };
        let (k_cols, v_cols) = (shape.n_k_heads * shape.k_dim, shape.n_v_heads * shape.v_dim);
        let convolved = build.cols(shape.qkv_cols());
        let delta_net = DeltaNetScratch {
            qkv: build.cols(shape.qkv_cols()),
            convolved,
            q: convolved.slice(0, k_cols).heads(shape.n_k_heads),
            k: convolved.slice(k_cols, k_cols).heads(shape.n_k_heads),
            v: convolved.slice(2 * k_cols, v_cols).heads(shape.n_v_heads),
            z: build.cols(v_cols).heads(shape.n_v_heads),
            a: build.cols(shape.n_v_heads),
            b: build.cols(shape.n_v_heads),
            mixed: build.cols(v_cols).heads(shape.n_v_heads),
        };
        let slot_rows = build.max_rows * top_k;
        let moe = MoeScratch {
            logits: build.cols(shape.n_experts),
            slots: build.backend().alloc(slot_rows, shape.hidden),
        };
        let shared = SharedScratch {
            gate: build.cols(shape.shared_intermediate),
            up: build.cols(shape.shared_intermediate),
            out: build.cols(shape.hidden),
            scale: build.cols(1),
        };
        Scratch { attention, q_cols, delta_net, moe, shared }
    }
}

/// Builds layers one after another.
struct Builder<'a, 'b> {
    shape: &'a Shape,
    build: &'a mut Build<'b>,
    scratch: Scratch,
    rope: Rope,
    stored: NormWeights,
    top_k: usize,
    caches: Vec<CacheSpec>,
}

impl Builder<'_, '_> {
    fn projection(&mut self, name: &str, rows: usize, cols: usize) -> Result<Weight, LoadError> {
        self.build.weights.matrix(name, rows, cols, Role::Projection)
    }

    fn gate(&mut self, name: &str, rows: usize, cols: usize) -> Result<Weight, LoadError> {
        self.build.weights.matrix(name, rows, cols, Role::Gate)
    }

    fn norm(&mut self, name: &str, len: usize) -> Result<Norm, LoadError> {
        Norm::load(self.build.weights, name, len, self.stored, self.shape.eps)
    }

    fn cache(&mut self, spec: CacheSpec) -> Cache {
        self.caches.push(spec);
        Cache(u32::try_from(self.caches.len() - 1).expect("few caches"))
    }

    fn layer(&mut self, i: usize) -> Result<Layer, LoadError> {
        let (hidden, name) = (self.shape.hidden, format!("layers.{i}"));
        let idx = LayerIdx(u16::try_from(i).expect("config bounds the number of layers"));
        let mixer = if self.shape.is_full_attention[i] {
            Mixer::Attention(self.attention(&format!("{name}.self_attn"))?)
        } else {
            Mixer::DeltaNet(self.delta_net(&format!("{name}.linear_attn"))?)
        };
        Ok(Layer {
            idx,
            input_norm: self.norm(&format!("{name}.input_layernorm.weight"), hidden)?,
            mixer,
            post_norm: self.norm(&format!("{name}.post_attention_layernorm.weight"), hidden)?,
            moe: self.moe(idx, &format!("{name}.mlp"))?,
        })
    }

    fn attention(&mut self, name: &str) -> Result<AttentionLayer, LoadError> {
        let Shape { hidden, n_heads, n_kv_heads, head_dim, .. } = *self.shape;
        Ok(AttentionLayer {
            q_cols: self.scratch.q_cols,
            q_proj: self.projection(&format!("{name}.q_proj"), 2 * n_heads * head_dim, hidden)?,
            k_proj: self.projection(&format!("{name}.k_proj"), n_kv_heads * head_dim, hidden)?,
            v_proj: self.projection(&format!("{name}.v_proj"), n_kv_heads * head_dim, hidden)?,
            o_proj: self.projection(&format!("{name}.o_proj"), hidden, n_heads * head_dim)?,
            q_norm: self.norm(&format!("{name}.q_norm.weight"), head_dim)?,
            k_norm: self.norm(&format!("{name}.k_norm.weight"), head_dim)?,
            rope: self.rope,
            cache: self.cache(CacheSpec::Kv {
                n_heads: n_kv_heads,
                k_dim: head_dim,
                v_dim: head_dim,
                dtype: self.build.variant.kv_type,
            }),
            scratch: self.scratch.attention,
        })
    }

    fn delta_net(&mut self, name: &str) -> Result<DeltaNetLayer, LoadError> {
        let Shape { hidden, n_v_heads, k_dim, v_dim, kernel, eps, .. } = *self.shape;
        let (channels, v_cols) = (self.shape.qkv_cols(), n_v_heads * v_dim);
        let weights = &mut *self.build.weights;
        let norm = format!("{name}.norm.weight");
        let norm = Norm::load(weights, &norm, v_dim, NormWeights::Plain, eps)?;
        let conv = weights.vector(&conv_name(name), &conv_shapes(channels, kernel))?;
        let conv = weights.backend().load_vector(&transposed(&conv.values, channels, kernel));
        let a_log = weights.vector(&format!("{name}.A_log"), &[vec![n_v_heads]])?;
        let dt_bias = weights.vector(&format!("{name}.dt_bias"), &[vec![n_v_heads]])?;
        Ok(DeltaNetLayer {
            in_proj_qkv: self.projection(&format!("{name}.in_proj_qkv"), channels, hidden)?,
            in_proj_z: self.projection(&format!("{name}.in_proj_z"), v_cols, hidden)?,
            in_proj_a: self.gate(&format!("{name}.in_proj_a"), n_v_heads, hidden)?,
            in_proj_b: self.gate(&format!("{name}.in_proj_b"), n_v_heads, hidden)?,
            out_proj: self.projection(&format!("{name}.out_proj"), hidden, v_cols)?,
            conv,
            conv_cache: self.cache(CacheSpec::Conv { channels, kernel }),
            a_log: self.build.backend().load_vector(&a_log.values),
            dt_bias: self.build.backend().load_vector(&dt_bias.values),
            delta_cache: self.cache(CacheSpec::Delta { n_heads: n_v_heads, k_dim, v_dim }),
            norm,
            scratch: self.scratch.delta_net,
        })
    }

    fn moe(&mut self, layer: LayerIdx, name: &str) -> Result<Moe, LoadError> {
        let Shape { hidden, n_experts, intermediate, shared_intermediate, .. } = *self.shape;
        let shared = format!("{name}.shared_expert");
        let shared = SharedExpert {
            gate_proj: self.projection(
                &format!("{shared}.gate_proj"),
                shared_intermediate,
                hidden,
            )?,
            up_proj: self.projection(&format!("{shared}.up_proj"), shared_intermediate, hidden)?,
            down_proj: self.projection(
                &format!("{shared}.down_proj"),
                hidden,
                shared_intermediate,
            )?,
            scale: Some(self.gate(&format!("{shared}_gate"), 1, hidden)?),
            scratch: self.scratch.shared,
        };
        self.build.weights.experts(ExpertsDecl {
            layer,
            prefix: name.to_owned(),
            parts: ["gate_proj", "up_proj", "down_proj"],
            fused: FusedOrder::GateThenUp,
            n_experts,
            hidden,
            intermediate,
        })?;
        Ok(Moe {
            layer,
            router: self.gate(&format!("{name}.gate"), n_experts, hidden)?,
            top_k: self.top_k,
            scoring: Scoring::Softmax { renormalise: true, scale: 1.0 },
            activation: Activation::Swiglu,
            biases: None,
            inputs: self.build.inputs,
            shared: Some(shared),
            scratch: self.scratch.moe,
        })
    }
}

fn conv_name(name: &str) -> String {
    format!("{name}.conv1d.weight")
}

/// PyTorch's shape, MLX's, and that of the original system's converter.
fn conv_shapes(channels: usize, kernel: usize) -> [Vec<usize>; 3] {
    [vec![channels, 1, kernel], vec![channels, kernel, 1], vec![channels, kernel]]
}

/// Hugging Face stores norms zero-centred; MLX's conversion adds one to them
/// and moves the taps of convolutions, whose shape thereby tells.
fn stored_norms(shape: &Shape, build: &mut Build<'_>) -> Result<NormWeights, LoadError> {
    let Some(i) = shape.is_full_attention.iter().position(|it| !it) else {
        return Ok(NormWeights::ZeroCentred);
    };
    let name = conv_name(&format!("layers.{i}.linear_attn"));
    let conv = build.weights.vector(&name, &conv_shapes(shape.qkv_cols(), shape.kernel))?;
    let is_torch = conv.shape == [shape.qkv_cols(), 1, shape.kernel];
    Ok(if is_torch { NormWeights::ZeroCentred } else { NormWeights::Plain })
}

/// `(channels, kernel)` as `(kernel, channels)`.
fn transposed(weight: &[f32], channels: usize, kernel: usize) -> Vec<f32> {
    (0..kernel * channels).map(|i| weight[i % channels * kernel + i / channels]).collect()
}

impl Qwen35Moe {
    fn build(config: &Config, build: &mut Build<'_>) -> Result<Qwen35Moe, LoadError> {
        let shape = Shape::read(config)?;
        let top_k = build.variant.top_k.unwrap_or(shape.config_top_k).min(shape.n_experts);
        let (hidden, normed, mixed) =
            (build.cols(shape.hidden), build.cols(shape.hidden), build.cols(shape.hidden));
        let scratch = Scratch::alloc(&shape, top_k, build);
        let rope = build.backend().load_rope(shape.rope());
        let stored = stored_norms(&shape, build)?;
        let embed_tokens =
            build.weights.matrix("embed_tokens", shape.vocab, shape.hidden, Role::Embedding)?;
        let mut builder =
            Builder { shape: &shape, build, scratch, rope, stored, top_k, caches: Vec::new() };
        let layers: Vec<Layer> =
            (0..shape.n_layers).map(|i| builder.layer(i)).collect::<Result<_, _>>()?;
        let norm = builder.norm("norm.weight", shape.hidden)?;
        let caches = builder.caches;
        let head = if shape.tied { "embed_tokens" } else { "lm_head" };
        let lm_head = build.weights.matrix(head, shape.vocab, shape.hidden, Role::Head)?;
        let shape = ModelShape {
            vocab: shape.vocab,
            hidden: shape.hidden,
            n_layers: shape.n_layers,
            n_moe_layers: shape.n_layers,
            n_experts: shape.n_experts,
            top_k,
            config_top_k: shape.config_top_k,
            max_positions: shape.max_positions,
            caches,
        };
        Ok(Qwen35Moe { shape, embed_tokens, layers, norm, lm_head, hidden, normed, mixed })
    }
}

impl Model for Qwen35Moe {
    fn shape(&self) -> &ModelShape {
        &self.shape
    }

    fn forward(&self, step: &mut Step<'_>) -> Result<(), EngineError> {
        let Qwen35Moe { hidden, normed, mixed, .. } = *self;
        let rows = step.rows();
        step.backend.embed(hidden, self.embed_tokens, step.tokens);
        for layer in &self.layers {
            step.experts.begin_layer(layer.idx);
            layer.input_norm.forward(step, normed, hidden);
            match &layer.mixer {
                Mixer::Attention(attention) => attention.forward(step, mixed, normed),
                Mixer::DeltaNet(delta_net) => delta_net.forward(step, mixed, normed),
            }
            step.backend.add(rows, hidden, mixed);
            layer.post_norm.forward(step, normed, hidden);
            layer.moe.forward(step, hidden, normed)?;
        }
        self.norm.forward(step, normed, hidden);
        Ok(())
    }

    fn output(&self) -> (Cols, Weight) {
        (self.normed, self.lm_head)
    }
}
