//! Shapes of published models.

use serde_json::{Value, json};

use super::super::published::{PublishedShape, nested, qwen3_tower, seeing, with};
use super::super::qwen3_moe::shapes::{qwen3_30b_a3b, qwen3_235b_a22b};

pub(super) const SHAPES: &[PublishedShape] = &[
    PublishedShape { name: "qwen3-vl-30b-a3b", config: qwen3_vl_30b_a3b },
    PublishedShape { name: "qwen3-vl-235b-a22b", config: qwen3_vl_235b_a22b },
];

/// A Qwen3-VL model, from a Qwen3 model of this width.
fn qwen3_vl(text: Value, hidden: usize) -> Value {
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
    let text = with(text, changes);
    let model = nested("qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration", text);
    let deepstack = json!({ "deepstack_visual_indexes": [8, 16, 24] });
    seeing(model, with(qwen3_tower(hidden), deepstack))
}

fn qwen3_vl_30b_a3b() -> Value {
    qwen3_vl(qwen3_30b_a3b(), 2048)
}

fn qwen3_vl_235b_a22b() -> Value {
    qwen3_vl(qwen3_235b_a22b(), 4096)
}
