//! Shapes of published models.

use serde_json::{Value, json};

use super::super::published::PublishedShape;

pub(super) const SHAPES: &[PublishedShape] =
    &[PublishedShape { name: "ernie-4.5-21b-a3b", config: ernie_45_21b_a3b }];

fn ernie_45_21b_a3b() -> Value {
    json!({
        "architectures": ["Ernie4_5_MoeForCausalLM"],
        "model_type": "ernie4_5_moe",
        "vocab_size": 103_424,
        "hidden_size": 2560,
        "intermediate_size": 12_288,
        "moe_intermediate_size": 1536,
        "num_hidden_layers": 28,
        "num_attention_heads": 20,
        "num_key_value_heads": 4,
        "moe_num_experts": 64,
        "moe_num_shared_experts": 2,
        "moe_k": 6,
        "moe_layer_start_index": 1,
        "moe_layer_end_index": -1,
        "moe_layer_interval": 1,
        "use_bias": false,
        "rope_theta": 500_000.0,
        "hidden_act": "silu",
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": true,
        "torch_dtype": "bfloat16",
    })
}
