//! Shapes of published models.

use serde_json::{Value, json};

use super::super::deepseek_v3::shapes::deepseek_v3;
use super::super::published::{PublishedShape, with};

pub(super) const SHAPES: &[PublishedShape] =
    &[PublishedShape { name: "deepseek-v3.2", config: deepseek_v32 }];

fn deepseek_v32() -> Value {
    let changes = json!({
        "architectures": ["DeepseekV32ForCausalLM"],
        "model_type": "deepseek_v32",
        "index_topk": 2048,
        "index_head_dim": 128,
        "index_n_heads": 64,
    });
    with(deepseek_v3(), changes)
}
