//! Shapes of published models.

use serde_json::{Value, json};

use super::super::published::PublishedShape;

pub(super) const SHAPES: &[PublishedShape] =
    &[PublishedShape { name: "k-exaone-236b-a23b", config: k_exaone_236b_a23b }];

fn k_exaone_236b_a23b() -> Value {
    json!({
        "architectures": ["ExaoneMoeForCausalLM"],
        "model_type": "exaone_moe",
        "vocab_size": 153_600,
        "hidden_size": 6144,
        "intermediate_size": 18_432,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 48,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_shared_experts": 1,
        "first_k_dense_replace": 1,
        "norm_topk_prob": true,
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "n_group": 1,
        "topk_group": 1,
        "sliding_window": 128,
        "sliding_window_pattern": 4,
        "rope_theta": 1_000_000.0,
        "hidden_act": "silu",
        "max_position_embeddings": 262_144,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": false,
        "dtype": "bfloat16",
    })
}
