//! Shapes of published models, and two of no model that tests and measurements use.

use serde_json::{Value, json};

use super::super::published::{PublishedShape, qwen3_tower, seeing};

pub(super) const SHAPES: &[PublishedShape] = &[
    PublishedShape { name: "qwen3.6-35b-a3b", config: || published(&QWEN36_35B) },
    PublishedShape { name: "qwen3.5-397b-a17b", config: || published(&QWEN35_397B) },
    PublishedShape { name: "qwen3.8-2.4t-a95b", config: || published(&QWEN38_2400B) },
    PublishedShape { name: "mid", config: || config(&MID) },
    PublishedShape { name: "tiny", config: || config(&TINY) },
];

/// Figures that differ from one model to the next.
struct Figures {
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

const QWEN36_35B: Figures = Figures {
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
};

const QWEN35_397B: Figures = Figures {
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
};

const QWEN38_2400B: Figures = Figures {
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
};

/// Layers of the 35B model under a small vocabulary.
const MID: Figures = Figures {
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
};

const TINY: Figures = Figures {
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
};

fn published(shape: &Figures) -> Value {
    seeing(config(shape), qwen3_tower(shape.hidden))
}

fn config(shape: &Figures) -> Value {
    json!({
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "text_config": text_config(shape),
        "tie_word_embeddings": false,
    })
}

fn text_config(shape: &Figures) -> Value {
    const INTERVAL: usize = 4;
    let layer_type = |i: usize| match (i + 1) % INTERVAL {
        0 => "full_attention",
        _ => "linear_attention",
    };
    json!({
        "model_type": "qwen3_5_moe_text",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.n_layers,
        "num_attention_heads": shape.n_heads,
        "num_key_value_heads": shape.n_kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 262_144,
        "attention_bias": false,
        "full_attention_interval": INTERVAL,
        "layer_types": (0..shape.n_layers).map(layer_type).collect::<Vec<_>>(),
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
