//! Qwen3 and its kin.

use serde_json::{Value, json};

use super::parts::{nested, with};

pub(super) fn qwen3_30b_a3b() -> Value {
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

pub(super) fn qwen3_235b_a22b() -> Value {
    let changes = json!({
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "moe_intermediate_size": 1536,
        "num_hidden_layers": 94,
        "num_attention_heads": 64,
    });
    with(qwen3_30b_a3b(), changes)
}

pub(super) fn qwen3_coder_480b_a35b() -> Value {
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

pub(super) fn qwen3_vl_30b_a3b() -> Value {
    qwen3_vl(qwen3_30b_a3b())
}

pub(super) fn qwen3_vl_235b_a22b() -> Value {
    qwen3_vl(qwen3_235b_a22b())
}

pub(super) fn qwen3_next_80b_a3b() -> Value {
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

pub(super) fn qwen38_flash_next() -> Value {
    let text = json!({
        "model_type": "qwen4_exp_text",
        "vocab_size": 248_320,
        "hidden_size": 2560,
        "moe_intermediate_size": 640,
        "shared_expert_intermediate_size": 640,
        "num_hidden_layers": 48,
        "num_attention_heads": 24,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "full_attention_interval": 4,
        "linear_conv_kernel_dim": 4,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "output_gate_type": "sigmoid",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 262_144,
        "attention_bias": false,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000_000.0,
            "partial_rotary_factor": 0.25,
            "mrope_interleaved": true,
            "mrope_section": [11, 11, 10],
        },
        "tie_word_embeddings": false,
        "dtype": "bfloat16",
    });
    let streams_indexers_and_tables = json!({
        "hc_count": 4,
        "hc_lowrank": 320,
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 128,
        "indexer_budget": 2048,
        "indexer_compress_ratio": 4,
        "ple_layer_ids": [2],
        "ple_embed_dim": 2560,
        "ple_conv_kernel_size": 4,
        "ngram_size": 3,
        "heads_per_ngram": 8,
        "ngram_vocab_size_base": 20_000_000,
        "make_ngram_vocab_size_divisible_by": 128,
        "split_ngram_parts": 128,
        "seed": 1234,
        "eos_token_id": 248_044,
    });
    let text = with(text, streams_indexers_and_tables);
    nested("qwen4_exp", "Qwen4ExpForConditionalGeneration", text)
}
