//! Shapes of published models.

use serde_json::{Value, json};

use super::super::glm4_moe::shapes::glm_45_air;
use super::super::published::{PublishedShape, nested, with};

pub(super) const SHAPES: &[PublishedShape] =
    &[PublishedShape { name: "glm-4.5v", config: glm_45v }];

/// The text of GLM-4.5V and GLM-4.6V: that of GLM-4.5-Air.
fn glm_45v() -> Value {
    let changes = json!({
        "architectures": ["Glm4vMoeForConditionalGeneration"],
        "model_type": "glm4v_moe_text",
        "max_position_embeddings": 65_536,
        "rope_theta": 10_000.0,
        "rope_scaling": {"rope_type": "default", "mrope_section": [8, 12, 12]},
    });
    nested("glm4v_moe", "Glm4vMoeForConditionalGeneration", with(glm_45_air(), changes))
}
