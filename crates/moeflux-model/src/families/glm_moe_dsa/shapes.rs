//! Shapes of published models.

use serde_json::{Value, json};

use super::super::glm4_moe_lite::shapes::glm_latent;
use super::super::published::{PublishedShape, with};

pub(super) const SHAPES: &[PublishedShape] = &[
    PublishedShape { name: "glm-5", config: glm_5 },
    PublishedShape { name: "glm-5.3", config: glm_53 },
];

fn glm_5() -> Value {
    let changes = json!({
        "architectures": ["GlmMoeDsaForCausalLM"],
        "model_type": "glm_moe_dsa",
        "hidden_size": 6144,
        "intermediate_size": 12_288,
        "num_hidden_layers": 78,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "q_lora_rank": 2048,
        "index_topk": 2048,
        "index_head_dim": 128,
        "index_n_heads": 32,
    });
    with(glm_latent(), changes)
}

/// GLM-5.2 and GLM-5.3: every fourth indexer chooses for the next three layers.
fn glm_53() -> Value {
    let changes = json!({
        "index_topk_freq": 4,
        "index_skip_topk_offset": 3,
        "max_position_embeddings": 1_048_576,
        "rope_theta": 8_000_000.0,
    });
    with(glm_5(), changes)
}
