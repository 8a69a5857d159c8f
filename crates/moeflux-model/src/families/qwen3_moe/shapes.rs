//! Shapes of published models.

use serde_json::{Value, json};

use super::super::published::{PublishedShape, with};

pub(super) const SHAPES: &[PublishedShape] = &[
    PublishedShape { name: "qwen3-30b-a3b", config: qwen3_30b_a3b },
    PublishedShape { name: "qwen3-235b-a22b", config: qwen3_235b_a22b },
    PublishedShape { name: "qwen3-coder-480b-a35b", config: qwen3_coder_480b_a35b },
];

pub(in super::super) fn qwen3_30b_a3b() -> Value {
    json!({
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "vocab_size": 151_936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": true,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "attention_bias": false,
        "use_sliding_window": false,
        "rope_theta": 1_000_000.0,
        "hidden_act": "silu",
        "max_position_embeddings": 40_960,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": false,
        "dtype": "bfloat16",
    })
}

pub(in super::super) fn qwen3_235b_a22b() -> Value {
    let changes = json!({
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "moe_intermediate_size": 1536,
        "num_hidden_layers": 94,
        "num_attention_heads": 64,
    });
    with(qwen3_30b_a3b(), changes)
}

fn qwen3_coder_480b_a35b() -> Value {
    let changes = json!({
        "hidden_size": 6144,
        "intermediate_size": 8192,
        "moe_intermediate_size": 2560,
        "num_hidden_layers": 62,
        "num_attention_heads": 96,
        "num_key_value_heads": 8,
        "num_experts": 160,
        "rope_theta": 10_000_000.0,
        "max_position_embeddings": 262_144,
    });
    with(qwen3_30b_a3b(), changes)
}
