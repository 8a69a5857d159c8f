//! Shapes of published models.

use serde_json::{Value, json};

use super::super::published::PublishedShape;

pub(super) const SHAPES: &[PublishedShape] =
    &[PublishedShape { name: "ling-mini-2.0", config: ling_mini_20 }];

/// Ring-mini-2.0 has the same shape.
fn ling_mini_20() -> Value {
    json!({
        "architectures": ["BailingMoeV2ForCausalLM"],
        "model_type": "bailing_moe",
        "vocab_size": 157_184,
        "hidden_size": 2048,
        "intermediate_size": 5120,
        "moe_intermediate_size": 512,
        "num_hidden_layers": 20,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 256,
        "num_shared_experts": 1,
        "num_experts_per_tok": 8,
        "n_group": 8,
        "topk_group": 4,
        "first_k_dense_replace": 1,
        "routed_scaling_factor": 2.5,
        "score_function": "sigmoid",
        "use_qk_norm": true,
        "use_bias": false,
        "use_qkv_bias": false,
        "partial_rotary_factor": 0.5,
        "rope_theta": 600_000.0,
        "hidden_act": "silu",
        "max_position_embeddings": 32_768,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": false,
        "torch_dtype": "bfloat16",
    })
}
