//! Configs of published models, as far as their shapes and arithmetic go.
//! Figures: the models' own `config.json`, and the defaults of transformers'
//! configuration classes that were made after them.

use serde_json::{Value, json};

type Make = fn() -> Value;

/// Shapes by name.
pub(super) const MODELS: &[(&str, Make)] = &[
    ("deepseek-v3", deepseek_v3),
    ("deepseek-v3.2", deepseek_v32),
    ("kimi-k2", kimi_k2),
    ("kimi-k2.5", kimi_k25),
    ("glm-5", glm_5),
    ("glm-5.3", glm_53),
    ("glm-4.7-flash", glm_47_flash),
    ("glm-4.5-air", glm_45_air),
    ("glm-4.5v", glm_45v),
    ("glm-4.7", glm_47),
    ("gemma-4-26b-a4b", gemma_4_26b_a4b),
    ("qwen3-30b-a3b", qwen3_30b_a3b),
    ("qwen3-235b-a22b", qwen3_235b_a22b),
    ("qwen3-coder-480b-a35b", qwen3_coder_480b_a35b),
    ("qwen3-vl-30b-a3b", qwen3_vl_30b_a3b),
    ("qwen3-vl-235b-a22b", qwen3_vl_235b_a22b),
    ("qwen3-next-80b-a3b", qwen3_next_80b_a3b),
    ("hy3", hy3),
    ("solar-open-100b", solar_open_100b),
    ("k-exaone-236b-a23b", k_exaone_236b_a23b),
    ("ernie-4.5-21b-a3b", ernie_45_21b_a3b),
    ("ling-mini-2.0", ling_mini_20),
    ("mixtral-8x7b", mixtral_8x7b),
    ("minimax-m2", minimax_m2),
    ("gpt-oss-20b", gpt_oss_20b),
    ("gpt-oss-120b", gpt_oss_120b),
];

/// `base` with the keys of `changes` set.
fn with(mut base: Value, changes: Value) -> Value {
    if let (Some(base), Value::Object(changes)) = (base.as_object_mut(), changes) {
        base.extend(changes);
    }
    base
}

/// 671 billion parameters; Cogito v2's largest has the same shape.
fn deepseek_v3() -> Value {
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

fn deepseek_v32() -> Value {
    let changes = json!({
        "architectures": ["DeepseekV32ForCausalLM"],
        "model_type": "deepseek_v32",
        "index_topk": 2048,
        "index_head_dim": 128,
        "index_n_heads": 64,
    });
    with(deepseek_v3(), changes)
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

/// A language model inside a model that also sees.
fn nested(model_type: &str, architecture: &str, text: Value) -> Value {
    json!({
        "architectures": [architecture],
        "model_type": model_type,
        "text_config": text,
        "tie_word_embeddings": false,
    })
}

fn kimi_k25() -> Value {
    let mut text =
        with(kimi_k2(), json!({"rms_norm_eps": 1e-5, "max_position_embeddings": 262_144}));
    text["rope_scaling"]["factor"] = json!(64.0);
    text["rope_scaling"]["beta_fast"] = json!(32.0);
    nested("kimi_k25", "KimiK25ForConditionalGeneration", text)
}

/// What GLM's models with latent attention share.
fn glm_latent() -> Value {
    let changes = json!({
        "vocab_size": 154_880,
        "qk_nope_head_dim": 192,
        "v_head_dim": 256,
        "n_group": 1,
        "topk_group": 1,
        "max_position_embeddings": 202_752,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "rope_scaling": null,
    });
    with(deepseek_v3(), changes)
}

fn glm_5() -> Value {
    let changes = json!({
        "architectures": ["GlmMoeDsaForCausalLM"],
        "model_type": "glm_moe_dsa",
        "hidden_size": 6144,
        "intermediate_size": 12_288,
        "num_hidden_layers": 78,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "q_lora_rank": 2048,
        "index_topk": 2048,
        "index_head_dim": 128,
        "index_n_heads": 32,
    });
    with(glm_latent(), changes)
}

/// GLM-5.2 and GLM-5.3: every fourth indexer chooses for the next three layers.
fn glm_53() -> Value {
    let changes = json!({
        "index_topk_freq": 4,
        "index_skip_topk_offset": 3,
        "max_position_embeddings": 1_048_576,
        "rope_theta": 8_000_000.0,
    });
    with(glm_5(), changes)
}

fn glm_47_flash() -> Value {
    let changes = json!({
        "architectures": ["Glm4MoeLiteForCausalLM"],
        "model_type": "glm4_moe_lite",
        "hidden_size": 2048,
        "intermediate_size": 10_240,
        "moe_intermediate_size": 1536,
        "num_hidden_layers": 47,
        "num_attention_heads": 20,
        "num_key_value_heads": 20,
        "n_routed_experts": 64,
        "routed_scaling_factor": 1.8,
        "q_lora_rank": 768,
        "num_experts_per_tok": 4,
        "first_k_dense_replace": 1,
    });
    with(glm_latent(), changes)
}

fn glm_45_air() -> Value {
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
fn glm_45v() -> Value {
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
fn glm_47() -> Value {
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

fn hy3() -> Value {
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

fn solar_open_100b() -> Value {
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

fn ernie_45_21b_a3b() -> Value {
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

fn qwen3_30b_a3b() -> Value {
    json!({
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "vocab_size": 151_936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": true,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "attention_bias": false,
        "use_sliding_window": false,
        "rope_theta": 1_000_000.0,
        "hidden_act": "silu",
        "max_position_embeddings": 40_960,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": false,
        "dtype": "bfloat16",
    })
}

fn qwen3_235b_a22b() -> Value {
    let changes = json!({
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "moe_intermediate_size": 1536,
        "num_hidden_layers": 94,
        "num_attention_heads": 64,
    });
    with(qwen3_30b_a3b(), changes)
}

fn qwen3_coder_480b_a35b() -> Value {
    let changes = json!({
        "hidden_size": 6144,
        "intermediate_size": 8192,
        "moe_intermediate_size": 2560,
        "num_hidden_layers": 62,
        "num_attention_heads": 96,
        "num_key_value_heads": 8,
        "num_experts": 160,
        "rope_theta": 10_000_000.0,
        "max_position_embeddings": 262_144,
    });
    with(qwen3_30b_a3b(), changes)
}

/// The text of a Qwen3-VL model, from that of a Qwen3 model.
fn qwen3_vl(text: Value) -> Value {
    let changes = json!({
        "model_type": "qwen3_vl_moe_text",
        "rope_theta": 5_000_000.0,
        "rope_scaling": {
            "rope_type": "default",
            "mrope_interleaved": true,
            "mrope_section": [24, 20, 20],
        },
        "max_position_embeddings": 262_144,
    });
    nested("qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration", with(text, changes))
}

fn qwen3_vl_30b_a3b() -> Value {
    qwen3_vl(qwen3_30b_a3b())
}

fn qwen3_vl_235b_a22b() -> Value {
    qwen3_vl(qwen3_235b_a22b())
}

fn qwen3_next_80b_a3b() -> Value {
    let changes = json!({
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "intermediate_size": 5120,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "full_attention_interval": 4,
        "linear_conv_kernel_dim": 4,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "partial_rotary_factor": 0.25,
        "rope_theta": 10_000_000.0,
        "max_position_embeddings": 262_144,
    });
    with(qwen3_30b_a3b(), changes)
}

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

/// Without its vision tower. Every sixth layer is a full one by default, so that fewer layers may be
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
    })
}
