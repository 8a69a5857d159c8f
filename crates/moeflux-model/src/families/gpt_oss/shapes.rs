//! Shapes of published models.

use serde_json::{Value, json};

use super::super::published::{PublishedShape, with};

pub(super) const SHAPES: &[PublishedShape] = &[
    PublishedShape { name: "gpt-oss-20b", config: gpt_oss_20b },
    PublishedShape { name: "gpt-oss-120b", config: gpt_oss_120b },
];

fn gpt_oss_20b() -> Value {
    json!({
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "vocab_size": 201_088,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 24,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
        "attention_bias": true,
        "sliding_window": 128,
        "swiglu_limit": 7.0,
        "rope_theta": 150_000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "original_max_position_embeddings": 4096,
            "truncate": false,
        },
        "hidden_act": "silu",
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": false,
        "dtype": "bfloat16",
    })
}

fn gpt_oss_120b() -> Value {
    with(gpt_oss_20b(), json!({"num_hidden_layers": 36, "num_local_experts": 128}))
}
