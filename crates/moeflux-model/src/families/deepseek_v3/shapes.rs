//! Shapes of published models.

use serde_json::{Value, json};

use super::super::published::{PublishedShape, nested, seeing, with};

pub(super) const SHAPES: &[PublishedShape] = &[
    PublishedShape { name: "deepseek-v3", config: deepseek_v3 },
    PublishedShape { name: "kimi-k2", config: kimi_k2 },
    PublishedShape { name: "kimi-k2.5", config: kimi_k25 },
];

/// 671 billion parameters; Cogito v2's largest has the same shape.
pub(in super::super) fn deepseek_v3() -> Value {
    json!({
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "vocab_size": 129_280,
        "hidden_size": 7168,
        "intermediate_size": 18_432,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "n_shared_experts": 1,
        "n_routed_experts": 256,
        "routed_scaling_factor": 2.5,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "qk_nope_head_dim": 128,
        "topk_method": "noaux_tc",
        "n_group": 8,
        "topk_group": 4,
        "num_experts_per_tok": 8,
        "moe_layer_freq": 1,
        "first_k_dense_replace": 3,
        "norm_topk_prob": true,
        "scoring_func": "sigmoid",
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
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096,
        },
        "tie_word_embeddings": false,
        "dtype": "bfloat16",
    })
}

fn kimi_k2() -> Value {
    let changes = json!({
        "model_type": "kimi_k2",
        "vocab_size": 163_840,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "n_routed_experts": 384,
        "routed_scaling_factor": 2.827,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "max_position_embeddings": 131_072,
        "rope_theta": 50_000.0,
        "rope_scaling": {
            "type": "yarn",
            "factor": 32.0,
            "beta_fast": 1.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096,
        },
    });
    with(deepseek_v3(), changes)
}

fn kimi_k25() -> Value {
    let mut text =
        with(kimi_k2(), json!({"rms_norm_eps": 1e-5, "max_position_embeddings": 262_144}));
    text["rope_scaling"]["factor"] = json!(64.0);
    text["rope_scaling"]["beta_fast"] = json!(32.0);
    let model = nested("kimi_k25", "KimiK25ForConditionalGeneration", text);
    let vision = json!({
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "patch_size": 14,
        "init_pos_emb_height": 64,
        "init_pos_emb_width": 64,
        "init_pos_emb_time": 4,
        "merge_kernel_size": [2, 2],
        "projector_ln_eps": 1e-5,
    });
    seeing(model, vision)
}
