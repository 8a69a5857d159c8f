//! Shapes of published models.

use serde_json::{Value, json};

use super::super::published::PublishedShape;

pub(super) const SHAPES: &[PublishedShape] =
    &[PublishedShape { name: "minimax-m2", config: minimax_m2 }];

fn minimax_m2() -> Value {
    json!({
        "architectures": ["MiniMaxM2ForCausalLM"],
        "model_type": "minimax_m2",
        "vocab_size": 200_064,
        "hidden_size": 3072,
        "intermediate_size": 1536,
        "num_hidden_layers": 62,
        "num_attention_heads": 48,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_local_experts": 256,
        "num_experts_per_tok": 8,
        "scoring_func": "sigmoid",
        "use_routing_bias": true,
        "use_qk_norm": true,
        "qk_norm_type": "per_layer",
        "rotary_dim": 64,
        "rope_theta": 5_000_000.0,
        "hidden_act": "silu",
        "max_position_embeddings": 196_608,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": false,
        "dtype": "bfloat16",
    })
}
