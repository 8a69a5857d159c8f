//! Shapes of published models.

use serde_json::{Value, json};

use super::super::published::{PublishedShape, with};

pub(super) const SHAPES: &[PublishedShape] = &[
    PublishedShape { name: "deepseek-v2-lite", config: lite },
    PublishedShape { name: "deepseek-v2", config: large },
];

/// Coder-V2-Lite has the same shape.
fn lite() -> Value {
    json!({
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "vocab_size": 102_400,
        "hidden_size": 2048,
        "intermediate_size": 10_944,
        "moe_intermediate_size": 1408,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "n_shared_experts": 2,
        "n_routed_experts": 64,
        "routed_scaling_factor": 1.0,
        "kv_lora_rank": 512,
        "q_lora_rank": null,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "qk_nope_head_dim": 128,
        "topk_method": "greedy",
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 6,
        "moe_layer_freq": 1,
        "first_k_dense_replace": 1,
        "norm_topk_prob": false,
        "scoring_func": "softmax",
        "hidden_act": "silu",
        "max_position_embeddings": 163_840,
        "rms_norm_eps": 1e-6,
        "attention_bias": false,
        "rope_theta": 10_000.0,
        "rope_scaling": {
            "type": "yarn",
            "factor": 40.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 0.707,
            "mscale_all_dim": 0.707,
            "original_max_position_embeddings": 4096,
        },
        "tie_word_embeddings": false,
        "torch_dtype": "bfloat16",
    })
}

/// 236 billion parameters; V2.5 and Coder-V2 have the same shape.
fn large() -> Value {
    let changes = json!({
        "hidden_size": 5120,
        "intermediate_size": 12_288,
        "moe_intermediate_size": 1536,
        "num_hidden_layers": 60,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "n_routed_experts": 160,
        "routed_scaling_factor": 16.0,
        "q_lora_rank": 1536,
        "topk_method": "group_limited_greedy",
        "n_group": 8,
        "topk_group": 3,
    });
    let mut all = with(lite(), changes);
    all["rope_scaling"]["mscale"] = json!(1.0);
    all["rope_scaling"]["mscale_all_dim"] = json!(1.0);
    all
}
