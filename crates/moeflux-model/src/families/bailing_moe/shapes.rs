//! Shapes of published models.

use serde_json::{Value, json};

use super::super::published::PublishedShape;

pub(super) const SHAPES: &[PublishedShape] =
    &[PublishedShape { name: "ling-lite", config: ling_lite }];

fn ling_lite() -> Value {
    json!({
        "architectures": ["BailingMoeForCausalLM"],
        "model_type": "bailing_moe",
        "vocab_size": 126_464,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "moe_intermediate_size": 1408,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 64,
        "num_shared_experts": 2,
        "num_experts_per_tok": 6,
        "norm_topk_prob": true,
        "first_k_dense_replace": 0,
        "use_bias": false,
        "use_qkv_bias": false,
        "rope_theta": 600_000.0,
        "hidden_act": "silu",
        "max_position_embeddings": 16_384,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": false,
        "torch_dtype": "bfloat16",
    })
}
