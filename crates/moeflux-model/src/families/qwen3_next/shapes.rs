//! Shapes of published models.

use serde_json::{Value, json};

use super::super::published::{PublishedShape, with};
use super::super::qwen3_moe::shapes::qwen3_30b_a3b;

pub(super) const SHAPES: &[PublishedShape] =
    &[PublishedShape { name: "qwen3-next-80b-a3b", config: qwen3_next_80b_a3b }];

fn qwen3_next_80b_a3b() -> Value {
    let changes = json!({
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "intermediate_size": 5120,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "full_attention_interval": 4,
        "linear_conv_kernel_dim": 4,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "partial_rotary_factor": 0.25,
        "rope_theta": 10_000_000.0,
        "max_position_embeddings": 262_144,
    });
    with(qwen3_30b_a3b(), changes)
}
