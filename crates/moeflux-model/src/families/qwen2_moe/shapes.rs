//! Shapes of published models.

use serde_json::{Value, json};

use super::super::published::{PublishedShape, with};

pub(super) const SHAPES: &[PublishedShape] = &[
    PublishedShape { name: "qwen1.5-moe-a2.7b", config: a27b },
    PublishedShape { name: "qwen2-57b-a14b", config: a14b },
];

fn a27b() -> Value {
    json!({
        "architectures": ["Qwen2MoeForCausalLM"],
        "model_type": "qwen2_moe",
        "vocab_size": 151_936,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "norm_topk_prob": false,
        "decoder_sparse_step": 1,
        "use_sliding_window": false,
        "rope_theta": 1_000_000.0,
        "hidden_act": "silu",
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": false,
        "torch_dtype": "bfloat16",
    })
}

fn a14b() -> Value {
    let changes = json!({
        "hidden_size": 3584,
        "intermediate_size": 18_944,
        "moe_intermediate_size": 2560,
        "shared_expert_intermediate_size": 20_480,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "max_position_embeddings": 32_768,
    });
    with(a27b(), changes)
}
