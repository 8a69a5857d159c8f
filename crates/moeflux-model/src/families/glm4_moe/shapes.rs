//! Shapes of published models.

use serde_json::{Value, json};

use super::super::published::{PublishedShape, with};

pub(super) const SHAPES: &[PublishedShape] = &[
    PublishedShape { name: "glm-4.5-air", config: glm_45_air },
    PublishedShape { name: "glm-4.7", config: glm_47 },
];

pub(in super::super) fn glm_45_air() -> Value {
    json!({
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "vocab_size": 151_552,
        "hidden_size": 4096,
        "intermediate_size": 10_944,
        "moe_intermediate_size": 1408,
        "num_hidden_layers": 46,
        "num_attention_heads": 96,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "n_shared_experts": 1,
        "n_routed_experts": 128,
        "routed_scaling_factor": 1.0,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 1,
        "norm_topk_prob": true,
        "use_qk_norm": false,
        "attention_bias": true,
        "partial_rotary_factor": 0.5,
        "rope_theta": 1_000_000.0,
        "hidden_act": "silu",
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": false,
        "dtype": "bfloat16",
    })
}

/// GLM-4.5, GLM-4.6 and GLM-4.7.
fn glm_47() -> Value {
    let changes = json!({
        "hidden_size": 5120,
        "intermediate_size": 12_288,
        "moe_intermediate_size": 1536,
        "num_hidden_layers": 92,
        "n_routed_experts": 160,
        "routed_scaling_factor": 2.5,
        "first_k_dense_replace": 3,
        "use_qk_norm": true,
        "max_position_embeddings": 202_752,
    });
    with(glm_45_air(), changes)
}
