//! Shapes of real models, as their configs have them.

use std::path::Path;

use moeflux_core::checkpoint::Config;
use moeflux_model::{Declared, FAMILIES, ModelShape, WithMtp};
use serde_json::{Value, json};

use super::options::SynthOptions;
use super::published;

/// Figures of a Qwen3.5-MoE model that differ from one to the next.
struct Qwen35 {
    hidden: usize,
    n_layers: usize,
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
    n_v_heads: usize,
    n_k_heads: usize,
    linear_dim: usize,
    n_experts: usize,
    top_k: usize,
    intermediate: usize,
    vocab: usize,
}

const SHAPES: &[(&str, Qwen35)] = &[
    (
        "qwen3.6-35b-a3b",
        Qwen35 {
            hidden: 2048,
            n_layers: 40,
            n_heads: 16,
            n_kv_heads: 2,
            head_dim: 256,
            n_v_heads: 32,
            n_k_heads: 16,
            linear_dim: 128,
            n_experts: 256,
            top_k: 8,
            intermediate: 512,
            vocab: 248_320,
        },
    ),
    (
        "qwen3.5-397b-a17b",
        Qwen35 {
            hidden: 4096,
            n_layers: 60,
            n_heads: 32,
            n_kv_heads: 2,
            head_dim: 256,
            n_v_heads: 64,
            n_k_heads: 16,
            linear_dim: 128,
            n_experts: 512,
            top_k: 10,
            intermediate: 1024,
            vocab: 248_320,
        },
    ),
    (
        "qwen3.8-2.4t-a95b",
        Qwen35 {
            hidden: 8192,
            n_layers: 92,
            n_heads: 64,
            n_kv_heads: 4,
            head_dim: 256,
            n_v_heads: 128,
            n_k_heads: 16,
            linear_dim: 128,
            n_experts: 512,
            top_k: 10,
            intermediate: 2048,
            vocab: 248_320,
        },
    ),
    // Layers of the 35B model under a small vocabulary.
    (
        "mid",
        Qwen35 {
            hidden: 2048,
            n_layers: 8,
            n_heads: 16,
            n_kv_heads: 2,
            head_dim: 256,
            n_v_heads: 32,
            n_k_heads: 16,
            linear_dim: 128,
            n_experts: 256,
            top_k: 8,
            intermediate: 512,
            vocab: 512,
        },
    ),
    (
        "tiny",
        Qwen35 {
            hidden: 256,
            n_layers: 4,
            n_heads: 4,
            n_kv_heads: 2,
            head_dim: 64,
            n_v_heads: 8,
            n_k_heads: 4,
            linear_dim: 32,
            n_experts: 16,
            top_k: 4,
            intermediate: 128,
            vocab: 512,
        },
    ),
];

/// The names of all shapes.
pub fn shape_names() -> impl Iterator<Item = &'static str> {
    let own = SHAPES.iter().map(|(name, _)| *name);
    own.chain(published::MODELS.iter().map(|(name, _)| *name))
}

/// The family of a shape, where there is such a shape.
pub fn shape_family(name: &str) -> Option<&'static str> {
    let config = config(name, &SynthOptions::default())?;
    let model_type = config["model_type"].as_str()?;
    FAMILIES
        .iter()
        .find(|family| family.model_types.contains(&model_type))
        .map(|family| family.name)
}

/// The name of the shape that a model has, by its family and its figures; `None` where there is none.
pub fn shape_like(family: &str, shape: &ModelShape) -> Option<&'static str> {
    let figures = |shape: &ModelShape| {
        let layers = [shape.n_layers, shape.n_moe_layers];
        (layers, [shape.n_experts, shape.config_top_k], [shape.hidden, shape.vocab])
    };
    let is_like = |name: &&str| {
        let value = config(name, &SynthOptions::default());
        let config =
            value.and_then(|value| Config::from_value(Path::new("config.json"), value).ok());
        let declared = config.and_then(|config| Declared::of_config(&config, WithMtp::Never).ok());
        declared.is_some_and(|declared| {
            declared.family.name == family && figures(&declared.shape) == figures(shape)
        })
    };
    shape_names().find(is_like)
}

/// The `config.json` of a shape.
pub(super) fn config(name: &str, options: &SynthOptions) -> Option<Value> {
    let SynthOptions { n_layers, table_rows, .. } = *options;
    if let Some((_, make)) = published::MODELS.iter().find(|(model, _)| *model == name) {
        let mut config = make();
        if let Some(n_layers) = n_layers {
            let is_nested = config.get("text_config").is_some();
            let text = if is_nested { &mut config["text_config"] } else { &mut config };
            text["num_hidden_layers"] = n_layers.into();
            // Counted from one.
            if let Some(ids) = text.get_mut("ple_layer_ids").and_then(Value::as_array_mut) {
                ids.retain(|id| id.as_u64() <= Some(n_layers as u64));
            }
        }
        if let Some(rows) = table_rows {
            let is_nested = config.get("text_config").is_some();
            let text = if is_nested { &mut config["text_config"] } else { &mut config };
            if let Some(base) = text.get_mut("ngram_vocab_size_base") {
                *base = rows.into();
            }
        }
        return Some(config);
    }
    let (_, shape) = SHAPES.iter().find(|(shape, _)| *shape == name)?;
    Some(json!({
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "text_config": text_config(shape, n_layers.unwrap_or(shape.n_layers)),
        "tie_word_embeddings": false,
    }))
}

fn text_config(shape: &Qwen35, n_layers: usize) -> Value {
    const INTERVAL: usize = 4;
    let layer_type = |i: usize| match (i + 1) % INTERVAL {
        0 => "full_attention",
        _ => "linear_attention",
    };
    json!({
        "model_type": "qwen3_5_moe_text",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "num_hidden_layers": n_layers,
        "num_attention_heads": shape.n_heads,
        "num_key_value_heads": shape.n_kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 262_144,
        "attention_bias": false,
        "full_attention_interval": INTERVAL,
        "layer_types": (0..n_layers).map(layer_type).collect::<Vec<_>>(),
        "linear_conv_kernel_dim": 4,
        "linear_num_key_heads": shape.n_k_heads,
        "linear_num_value_heads": shape.n_v_heads,
        "linear_key_head_dim": shape.linear_dim,
        "linear_value_head_dim": shape.linear_dim,
        "num_experts": shape.n_experts,
        "num_experts_per_tok": shape.top_k,
        "moe_intermediate_size": shape.intermediate,
        "shared_expert_intermediate_size": shape.intermediate,
        "tie_word_embeddings": false,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000_000.0,
            "partial_rotary_factor": 0.25,
        },
        "dtype": "bfloat16",
    })
}
