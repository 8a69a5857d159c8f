//! Shapes of published models.

use serde_json::{Value, json};

use super::super::published::PublishedShape;

pub(super) const SHAPES: &[PublishedShape] =
    &[PublishedShape { name: "mixtral-8x7b", config: mixtral_8x7b }];

fn mixtral_8x7b() -> Value {
    json!({
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "vocab_size": 32_000,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "sliding_window": null,
        "rope_theta": 1_000_000.0,
        "hidden_act": "silu",
        "max_position_embeddings": 32_768,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": false,
        "dtype": "bfloat16",
    })
}
