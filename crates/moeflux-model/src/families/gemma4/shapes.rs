//! Shapes of published models.

use serde_json::{Value, json};

use super::super::published::PublishedShape;

pub(super) const SHAPES: &[PublishedShape] =
    &[PublishedShape { name: "gemma-4-26b-a4b", config: gemma_4_26b_a4b }];

/// Every sixth layer is a full one by default, so that fewer layers may be
/// asked for.
fn gemma_4_26b_a4b() -> Value {
    json!({
        "architectures": ["Gemma4ForConditionalGeneration"],
        "model_type": "gemma4",
        "text_config": {
            "model_type": "gemma4_text",
            "vocab_size": 262_144,
            "hidden_size": 2816,
            "intermediate_size": 2112,
            "moe_intermediate_size": 704,
            "num_hidden_layers": 30,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 256,
            "num_global_key_value_heads": 2,
            "global_head_dim": 512,
            "attention_k_eq_v": true,
            "attention_bias": false,
            "sliding_window": 1024,
            "enable_moe_block": true,
            "num_experts": 128,
            "top_k_experts": 8,
            "hidden_size_per_layer_input": 0,
            "num_kv_shared_layers": 0,
            "use_double_wide_mlp": false,
            "use_bidirectional_attention": "vision",
            "hidden_activation": "gelu_pytorch_tanh",
            "final_logit_softcapping": 30.0,
            "max_position_embeddings": 262_144,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "proportional",
                    "partial_rotary_factor": 0.25,
                    "rope_theta": 1_000_000.0,
                },
                "sliding_attention": { "rope_type": "default", "rope_theta": 10_000.0 },
            },
            "tie_word_embeddings": true,
            "dtype": "bfloat16",
        },
        "tie_word_embeddings": true,
        "vision_config": {
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "head_dim": 72,
            "patch_size": 16,
            "pooling_kernel_size": 3,
            "position_embedding_size": 10_240,
            "rms_norm_eps": 1e-6,
            "rope_parameters": { "rope_theta": 100.0 },
            "standardize": true,
            "use_clipped_linears": false,
        },
    })
}
