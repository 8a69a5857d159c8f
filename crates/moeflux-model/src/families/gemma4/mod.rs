//! Gemma 4 with experts: sliding layers and full ones with heads of their own, keys that serve as
//! values, a dense MLP and experts side by side, GELU, norms before and after every part, scaled
//! embeddings and capped logits. As in transformers' `modeling_gemma4`.

mod gguf;
mod shapes;
mod tokenizer;

use moeflux_backend::{GatedActivation, PerExpert, RopePairs, Scoring};
use moeflux_core::LayerIdx;
use moeflux_core::checkpoint::Config;
use serde_json::Value;

use super::Family;
use crate::layers::attention::{
    AttentionBlocks, AttentionLayer, AttentionNames, AttentionShape, QkNorm, Values,
};
use crate::layers::builder::{Builder, Outline};
use crate::layers::connection::Connection;
use crate::layers::expert_shape::{Activation, ExpertShape, GatedExpert};
use crate::layers::layer::{After, Body, Half, Layer};
use crate::layers::moe::{MoeBlocks, MoeShape};
use crate::layers::norm::NormWeights;
use crate::layers::parallel_mlp::{ParallelBlocks, ParallelNorms, StreamNorms};
use crate::layers::rope;
use crate::layers::windows::windows_of_types;
use crate::load::LoadError;
use crate::model::{Build, Model};
use crate::towers;

pub(crate) const FAMILY: Family = Family {
    gguf: Some(&gguf::ARCHITECTURE),
    shapes: shapes::SHAPES,
    tokenizer: tokenizer::TOKENIZER,
    skipped_parts: &["embed_vision", "embed_audio"],
    experts_switch: Some("enable_moe_block"),
    tower: Some(towers::pooled::TOWER),
    ..Family::new("gemma4", &["gemma4_text", "gemma4"], include_str!("keys.json"), build)
};

const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

/// With "vision", rows of a picture see those after them in sliding layers.
const BIDIRECTIONAL: &str = "use_bidirectional_attention";

/// Layers from one full one to the next, where the config does not list them.
const PERIOD: usize = 6;

/// The heads of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HeadShape {
    /// Number of positions that a token attends to; all where absent.
    window: Option<usize>,
    head_dim: usize,
    n_kv_heads: usize,
}

/// Refuses what only other models of the family have.
fn check(config: &Config) -> Result<(), LoadError> {
    if !config.bool("enable_moe_block")? {
        let rule = "be true: models without experts have nothing to stream";
        return Err(config.refuse("enable_moe_block", rule).into());
    }
    if config.usize_in("hidden_size_per_layer_input", 0..=1 << 20)? > 0 {
        let rule = "be 0: embeddings of single layers are not computed";
        return Err(config.refuse("hidden_size_per_layer_input", rule).into());
    }
    // Text is causal even where pictures are not.
    match config.get(BIDIRECTIONAL).map(|value| value.as_str()) {
        None | Some(Some("vision")) => Ok(()),
        Some(_) => Err(config.refuse(BIDIRECTIONAL, "be null or \"vision\"").into()),
    }
}

fn outline(config: &Config) -> Result<Outline, LoadError> {
    let outline = Outline::of_activation(config, Activation::Gated(GatedActivation::GeluTanh))?;
    let key = "final_logit_softcapping";
    let cap = config.get(key).map(|_| config.f32(key)).transpose()?;
    if cap == Some(0.0) {
        return Err(config.refuse(key, "be above 0").into());
    }
    let embed_scale = Some((outline.hidden as f32).sqrt());
    Ok(Outline { embed_scale, logit_softcap: cap, ..outline })
}

/// How far each layer sees. The last one sees all, whatever the config says.
fn windows(config: &Config, n_layers: usize) -> Result<Vec<Option<usize>>, LoadError> {
    let window = config.usize("sliding_window")?;
    let mut windows = match config.str_list("layer_types")? {
        Some(types) => windows_of_types(config, &types, n_layers, window)?,
        None => (1..=n_layers).map(|i| (!i.is_multiple_of(PERIOD)).then_some(window)).collect(),
    };
    if let Some(last) = windows.last_mut() {
        *last = None;
    }
    Ok(windows)
}

/// The heads of every layer: from `per_layer_config` where the config has it, else those of full
/// layers from keys of their own.
fn head_shapes(config: &Config, n_layers: usize) -> Result<Vec<HeadShape>, LoadError> {
    let (head_dim, n_kv_heads) = (config.usize("head_dim")?, config.usize("num_key_value_heads")?);
    let windows = windows(config, n_layers)?;
    if let Some(layers) = config.get("per_layer_config") {
        let of_layer = |(i, window): (usize, Option<usize>)| {
            let number =
                |key, usual| own_number(config, layers, i, key).map(|n| n.unwrap_or(usual));
            let head_dim = number("head_dim", head_dim)?;
            let n_kv_heads = number("num_key_value_heads", n_kv_heads)?;
            Ok(HeadShape { window, head_dim, n_kv_heads })
        };
        return windows.into_iter().enumerate().map(of_layer).collect();
    }
    let global_dim = config.usize("global_head_dim")?;
    let key = "num_global_key_value_heads";
    let n_global = config.get(key).map(|_| config.usize(key)).transpose()?;
    // The reference reads the number of heads only where keys serve as values.
    let shares = config.bool("attention_k_eq_v")?;
    let n_global = n_global.filter(|_| shares);
    let of_layer = |window: Option<usize>| match window {
        Some(_) => HeadShape { window, head_dim, n_kv_heads },
        None => {
            HeadShape { window, head_dim: global_dim, n_kv_heads: n_global.unwrap_or(n_kv_heads) }
        }
    };
    Ok(windows.into_iter().map(of_layer).collect())
}

/// A number that `per_layer_config` has for one layer.
fn own_number(
    config: &Config,
    layers: &Value,
    layer: usize,
    key: &str,
) -> Result<Option<usize>, LoadError> {
    const MOST: u64 = 1 << 14;
    let Some(value) = layers.get(layer.to_string()).and_then(|keys| keys.get(key)) else {
        return Ok(None);
    };
    let number = value.as_u64().filter(|number| (1..=MOST).contains(number));
    let number = number.and_then(|number| usize::try_from(number).ok());
    let refuse = || {
        let rule = format!("have a whole number from 1 to {MOST} as {key} of layer {layer}");
        config.refuse("per_layer_config", &rule)
    };
    number.map(Some).ok_or_else(|| refuse().into())
}

fn attention_shape(config: &Config, heads: HeadShape) -> Result<AttentionShape, LoadError> {
    let HeadShape { window, head_dim, n_kv_heads } = heads;
    let n_heads = config.usize("num_attention_heads")?;
    if !n_heads.is_multiple_of(n_kv_heads) {
        let global = "num_global_key_value_heads";
        let is_own = window.is_none() && config.get(global).is_some();
        let key = if is_own { global } else { "num_key_value_heads" };
        return Err(config.refuse(key, "divide num_attention_heads").into());
    }
    let has_bias = config.bool("attention_bias")?;
    let shares = window.is_none() && config.bool("attention_k_eq_v")?;
    let looks_ahead = window.is_some() && config.get(BIDIRECTIONAL).is_some();
    Ok(AttentionShape {
        n_heads,
        n_kv_heads,
        head_dim,
        norms: QkNorm::PerHead,
        is_gated: false,
        has_qkv_bias: has_bias,
        has_output_bias: has_bias,
        window,
        values: if shares { Values::NormalisedKeys } else { Values::Normalised },
        scale: 1.0,
        pairs: RopePairs::Halves,
        sections: None,
        looks_ahead,
        names: AttentionNames::USUAL,
    })
}

/// The attention layers of a model, which share activations where their heads are alike.
struct Attentions {
    of_layers: Vec<HeadShape>,
    blocks: Vec<Alike>,
}

struct Alike {
    heads: HeadShape,
    blocks: AttentionBlocks,
}

impl Attentions {
    fn new(
        config: &Config,
        of_layers: Vec<HeadShape>,
        builder: &mut Builder<'_, '_>,
    ) -> Result<Attentions, LoadError> {
        let mut blocks: Vec<Alike> = Vec::new();
        for &heads in &of_layers {
            if blocks.iter().any(|alike| alike.heads == heads) {
                continue;
            }
            let layer_type = if heads.window.is_some() { SLIDING } else { FULL };
            let rope = rope::of_layer_type(config, layer_type, heads.head_dim)?;
            let rope = builder.build.backend().load_rope(rope);
            let shape = attention_shape(config, heads)?;
            blocks.push(Alike { heads, blocks: AttentionBlocks::new(shape, rope, builder) });
        }
        Ok(Attentions { of_layers, blocks })
    }

    fn load(
        &self,
        layer: LayerIdx,
        name: &str,
        builder: &mut Builder<'_, '_>,
    ) -> Result<AttentionLayer, LoadError> {
        let heads = self.of_layers[layer.idx()];
        let alike = self.blocks.iter().find(|alike| alike.heads == heads);
        alike.expect("every layer has its blocks").blocks.load(name, builder)
    }
}

fn build(config: &Config, build: &mut Build<'_>) -> Result<Box<dyn Model>, LoadError> {
    check(config)?;
    let outline = outline(config)?;
    let (hidden, n_experts) = (outline.hidden, config.usize("num_experts")?);
    let heads = head_shapes(config, outline.n_layers)?;
    let moe = MoeShape {
        expert: ExpertShape::Three(GatedExpert {
            activation: GatedActivation::GeluTanh,
            ..GatedExpert::USUAL
        }),
        router: "router.proj",
        ..MoeShape::read_top_k(config, "num_experts", "top_k_experts", "moe_intermediate_size")?
    };
    let intermediate = config.usize("intermediate_size")?;
    let mut builder = Builder::new(outline, NormWeights::Plain, build);
    let attentions = Attentions::new(config, heads, &mut builder)?;
    let moe = MoeBlocks::new(moe, &mut builder);
    let mlps = ParallelBlocks::new(moe, intermediate, &mut builder);
    builder.finish(|builder, idx, name| {
        let part = |part: &str| format!("{name}.{part}");
        let input_norm = builder.norm(&part("input_layernorm"), hidden)?;
        let mixer = Box::new(attentions.load(idx, &part("self_attn"), builder)?);
        let after = After::Norm(builder.norm(&part("post_attention_layernorm"), hidden)?);
        let dense = builder.norm(&part("pre_feedforward_layernorm"), hidden)?;
        // The router's input is divided by the root of its size, too.
        let factor = 1.0 / (hidden as f32).sqrt();
        let router = builder.scaled_norm(&part("router.scale"), hidden, factor)?;
        let norms = ParallelNorms {
            before_experts: &part("pre_feedforward_layernorm_2"),
            after_dense: &part("post_feedforward_layernorm_1"),
            after_experts: &part("post_feedforward_layernorm_2"),
            after_both: &part("post_feedforward_layernorm"),
        };
        let experts = |moe: &MoeBlocks, builder: &mut Builder<'_, '_>| {
            let factors = builder.vector(&part("router.per_expert_scale"), n_experts)?;
            let per_expert = Some(PerExpert::Factor(factors));
            let scoring =
                Scoring::Softmax { per_expert, groups: None, renormalise: true, scale: 1.0 };
            moe.load(idx, name, scoring, builder)
        };
        let mlp =
            mlps.load(&part("mlp"), &norms, StreamNorms { dense, router }, experts, builder)?;
        let scale = builder.number(&part("layer_scalar"))?;
        let mixer =
            Half::Body(Box::new(Connection::Norm(input_norm)), Body::Mixer { mixer, after });
        Ok(Layer { halves: vec![mixer, Half::Parallel(mlp), Half::Scale(scale)] })
    })
}

#[cfg(test)]
mod tests;
