//! Shapes of published models.

use serde_json::{Value, json};

use super::super::published::PublishedShape;

pub(super) const SHAPES: &[PublishedShape] =
    &[PublishedShape { name: "solar-open-100b", config: solar_open_100b }];

fn solar_open_100b() -> Value {
    json!({
        "architectures": ["SolarOpenForCausalLM"],
        "model_type": "solar_open",
        "vocab_size": 196_608,
        "hidden_size": 4096,
        "intermediate_size": 10_240,
        "moe_intermediate_size": 1280,
        "num_hidden_layers": 48,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "n_shared_experts": 1,
        "n_routed_experts": 128,
        "routed_scaling_factor": 1.0,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 0,
        "norm_topk_prob": true,
        "partial_rotary_factor": 1.0,
        "rope_theta": 1_000_000.0,
        "rope_scaling": {
            "type": "yarn",
            "factor": 2.0,
            "original_max_position_embeddings": 65_536,
        },
        "hidden_act": "silu",
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": false,
        "dtype": "bfloat16",
    })
}
