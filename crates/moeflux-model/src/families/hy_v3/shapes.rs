//! Shapes of published models.

use serde_json::{Value, json};

use super::super::published::PublishedShape;

pub(super) const SHAPES: &[PublishedShape] = &[PublishedShape { name: "hy3", config: hy3 }];

fn hy3() -> Value {
    json!({
        "architectures": ["HYV3ForCausalLM"],
        "model_type": "hy_v3",
        "vocab_size": 120_832,
        "hidden_size": 4096,
        "intermediate_size": 13_312,
        "moe_intermediate_size": 1536,
        "expert_hidden_dim": 1536,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_experts": 192,
        "num_experts_per_tok": 8,
        "num_shared_experts": 1,
        "first_k_dense_replace": 1,
        "router_scaling_factor": 2.826,
        "moe_router_use_sigmoid": true,
        "moe_router_enable_expert_bias": true,
        "route_norm": true,
        "qk_norm": true,
        "rope_parameters": {"rope_type": "default", "rope_theta": 11_158_840.0},
        "hidden_act": "silu",
        "max_position_embeddings": 262_144,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": false,
        "dtype": "bfloat16",
    })
}
