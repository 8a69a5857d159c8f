//! Shapes of published models.

use serde_json::{Value, json};

use super::super::deepseek_v3::shapes::deepseek_v3;
use super::super::published::{PublishedShape, with};

pub(super) const SHAPES: &[PublishedShape] =
    &[PublishedShape { name: "glm-4.7-flash", config: glm_47_flash }];

/// What GLM's models with latent attention share.
pub(in super::super) fn glm_latent() -> Value {
    let changes = json!({
        "vocab_size": 154_880,
        "qk_nope_head_dim": 192,
        "v_head_dim": 256,
        "n_group": 1,
        "topk_group": 1,
        "max_position_embeddings": 202_752,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "rope_scaling": null,
    });
    with(deepseek_v3(), changes)
}

fn glm_47_flash() -> Value {
    let changes = json!({
        "architectures": ["Glm4MoeLiteForCausalLM"],
        "model_type": "glm4_moe_lite",
        "hidden_size": 2048,
        "intermediate_size": 10_240,
        "moe_intermediate_size": 1536,
        "num_hidden_layers": 47,
        "num_attention_heads": 20,
        "num_key_value_heads": 20,
        "n_routed_experts": 64,
        "routed_scaling_factor": 1.8,
        "q_lora_rank": 768,
        "num_experts_per_tok": 4,
        "first_k_dense_replace": 1,
    });
    with(glm_latent(), changes)
}
