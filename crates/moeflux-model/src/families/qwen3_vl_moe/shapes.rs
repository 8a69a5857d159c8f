//! Shapes of published models.

use serde_json::{Value, json};

use super::super::published::{PublishedShape, nested, with};
use super::super::qwen3_moe::shapes::{qwen3_30b_a3b, qwen3_235b_a22b};

pub(super) const SHAPES: &[PublishedShape] = &[
    PublishedShape { name: "qwen3-vl-30b-a3b", config: qwen3_vl_30b_a3b },
    PublishedShape { name: "qwen3-vl-235b-a22b", config: qwen3_vl_235b_a22b },
];

/// The text of a Qwen3-VL model, from that of a Qwen3 model.
fn qwen3_vl(text: Value) -> Value {
    let changes = json!({
        "model_type": "qwen3_vl_moe_text",
        "rope_theta": 5_000_000.0,
        "rope_scaling": {
            "rope_type": "default",
            "mrope_interleaved": true,
            "mrope_section": [24, 20, 20],
        },
        "max_position_embeddings": 262_144,
    });
    nested("qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration", with(text, changes))
}

fn qwen3_vl_30b_a3b() -> Value {
    qwen3_vl(qwen3_30b_a3b())
}

fn qwen3_vl_235b_a22b() -> Value {
    qwen3_vl(qwen3_235b_a22b())
}
