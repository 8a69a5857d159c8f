//! Shapes of published models.

use serde_json::{Value, json};

use super::super::glm4_moe::shapes::glm_45_air;
use super::super::published::{PublishedShape, nested, seeing, with};

pub(super) const SHAPES: &[PublishedShape] =
    &[PublishedShape { name: "glm-4.5v", config: glm_45v }];

/// GLM-4.5V and GLM-4.6V, whose text is that of GLM-4.5-Air.
fn glm_45v() -> Value {
    let changes = json!({
        "architectures": ["Glm4vMoeForConditionalGeneration"],
        "model_type": "glm4v_moe_text",
        "max_position_embeddings": 65_536,
        "rope_theta": 10_000.0,
        "rope_scaling": {"rope_type": "default", "mrope_section": [8, 12, 12]},
    });
    let text = with(glm_45_air(), changes);
    let model = nested("glm4v_moe", "Glm4vMoeForConditionalGeneration", text);
    let vision = json!({
        "depth": 24,
        "hidden_size": 1536,
        "intermediate_size": 10_944,
        "num_heads": 12,
        "hidden_act": "silu",
        "attention_bias": false,
        "rms_norm_eps": 1e-5,
        "image_size": 336,
        "patch_size": 14,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "out_hidden_size": 4096,
    });
    seeing(model, vision)
}
