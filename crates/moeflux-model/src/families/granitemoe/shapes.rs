//! Shapes of published models.

use serde_json::{Value, json};

use super::super::published::PublishedShape;

pub(super) const SHAPES: &[PublishedShape] =
    &[PublishedShape { name: "granite-3.1-3b-a800m", config: granite_31_3b_a800m }];

fn granite_31_3b_a800m() -> Value {
    json!({
        "architectures": ["GraniteMoeForCausalLM"],
        "model_type": "granitemoe",
        "vocab_size": 49_155,
        "hidden_size": 1536,
        "intermediate_size": 512,
        "num_hidden_layers": 32,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
        "num_local_experts": 40,
        "num_experts_per_tok": 8,
        "attention_bias": false,
        "attention_multiplier": 0.015_625,
        "embedding_multiplier": 12.0,
        "logits_scaling": 6.0,
        "residual_multiplier": 0.22,
        "rope_theta": 5_000_000.0,
        "hidden_act": "silu",
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": true,
        "dtype": "bfloat16",
    })
}
