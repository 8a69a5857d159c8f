//! Models with grouped-query attention that are not of Qwen.

use serde_json::{Value, json};

use super::parts::{nested, with};

pub(super) fn glm_45_air() -> Value {
    json!({
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "vocab_size": 151_552,
        "hidden_size": 4096,
        "intermediate_size": 10_944,
        "moe_intermediate_size": 1408,
        "num_hidden_layers": 46,
        "num_attention_heads": 96,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "n_shared_experts": 1,
        "n_routed_experts": 128,
        "routed_scaling_factor": 1.0,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 1,
        "norm_topk_prob": true,
        "use_qk_norm": false,
        "attention_bias": true,
        "partial_rotary_factor": 0.5,
        "rope_theta": 1_000_000.0,
        "hidden_act": "silu",
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": false,
        "dtype": "bfloat16",
    })
}

/// The text of GLM-4.5V and GLM-4.6V: that of GLM-4.5-Air.
pub(super) fn glm_45v() -> Value {
    let changes = json!({
        "architectures": ["Glm4vMoeForConditionalGeneration"],
        "model_type": "glm4v_moe_text",
        "max_position_embeddings": 65_536,
        "rope_theta": 10_000.0,
        "rope_scaling": {"rope_type": "default", "mrope_section": [8, 12, 12]},
    });
    nested("glm4v_moe", "Glm4vMoeForConditionalGeneration", with(glm_45_air(), changes))
}

/// GLM-4.5, GLM-4.6 and GLM-4.7.
pub(super) fn glm_47() -> Value {
    let changes = json!({
        "hidden_size": 5120,
        "intermediate_size": 12_288,
        "moe_intermediate_size": 1536,
        "num_hidden_layers": 92,
        "n_routed_experts": 160,
        "routed_scaling_factor": 2.5,
        "first_k_dense_replace": 3,
        "use_qk_norm": true,
        "max_position_embeddings": 202_752,
    });
    with(glm_45_air(), changes)
}

pub(super) fn hy3() -> Value {
    json!({
        "architectures": ["HYV3ForCausalLM"],
        "model_type": "hy_v3",
        "vocab_size": 120_832,
        "hidden_size": 4096,
        "intermediate_size": 13_312,
        "moe_intermediate_size": 1536,
        "expert_hidden_dim": 1536,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_experts": 192,
        "num_experts_per_tok": 8,
        "num_shared_experts": 1,
        "first_k_dense_replace": 1,
        "router_scaling_factor": 2.826,
        "moe_router_use_sigmoid": true,
        "moe_router_enable_expert_bias": true,
        "route_norm": true,
        "qk_norm": true,
        "rope_parameters": {"rope_type": "default", "rope_theta": 11_158_840.0},
        "hidden_act": "silu",
        "max_position_embeddings": 262_144,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": false,
        "dtype": "bfloat16",
    })
}

pub(super) fn solar_open_100b() -> Value {
    json!({
        "architectures": ["SolarOpenForCausalLM"],
        "model_type": "solar_open",
        "vocab_size": 196_608,
        "hidden_size": 4096,
        "intermediate_size": 10_240,
        "moe_intermediate_size": 1280,
        "num_hidden_layers": 48,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "n_shared_experts": 1,
        "n_routed_experts": 128,
        "routed_scaling_factor": 1.0,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 0,
        "norm_topk_prob": true,
        "partial_rotary_factor": 1.0,
        "rope_theta": 1_000_000.0,
        "rope_scaling": {
            "type": "yarn",
            "factor": 2.0,
            "original_max_position_embeddings": 65_536,
        },
        "hidden_act": "silu",
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": false,
        "dtype": "bfloat16",
    })
}

pub(super) fn ernie_45_21b_a3b() -> Value {
    json!({
        "architectures": ["Ernie4_5_MoeForCausalLM"],
        "model_type": "ernie4_5_moe",
        "vocab_size": 103_424,
        "hidden_size": 2560,
        "intermediate_size": 12_288,
        "moe_intermediate_size": 1536,
        "num_hidden_layers": 28,
        "num_attention_heads": 20,
        "num_key_value_heads": 4,
        "moe_num_experts": 64,
        "moe_num_shared_experts": 2,
        "moe_k": 6,
        "moe_layer_start_index": 1,
        "moe_layer_end_index": -1,
        "moe_layer_interval": 1,
        "use_bias": false,
        "rope_theta": 500_000.0,
        "hidden_act": "silu",
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": true,
        "torch_dtype": "bfloat16",
    })
}

/// Ring-mini-2.0 has the same shape.
pub(super) fn ling_mini_20() -> Value {
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

pub(super) fn k_exaone_236b_a23b() -> Value {
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

pub(super) fn mixtral_8x7b() -> Value {
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

pub(super) fn minimax_m2() -> Value {
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

pub(super) fn olmoe_1b_7b() -> Value {
    json!({
        "architectures": ["OlmoeForCausalLM"],
        "model_type": "olmoe",
        "vocab_size": 50_304,
        "hidden_size": 2048,
        "intermediate_size": 1024,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "norm_topk_prob": false,
        "clip_qkv": null,
        "attention_bias": false,
        "rope_theta": 10_000.0,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": false,
        "dtype": "bfloat16",
    })
}

pub(super) fn granite_31_3b_a800m() -> Value {
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

pub(super) fn gpt_oss_20b() -> Value {
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

pub(super) fn gpt_oss_120b() -> Value {
    with(gpt_oss_20b(), json!({"num_hidden_layers": 36, "num_local_experts": 128}))
}

/// Without its vision tower. Every sixth layer is a full one by default, so that fewer layers may be
/// asked for.
pub(super) fn gemma_4_26b_a4b() -> Value {
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
    })
}
