//! Shapes of published models.

use serde_json::{Value, json};

use super::super::published::{PublishedShape, nested, qwen3_tower, seeing, with};

pub(super) const SHAPES: &[PublishedShape] =
    &[PublishedShape { name: "qwen3.8-flash-next", config: qwen38_flash_next }];

fn qwen38_flash_next() -> Value {
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
    let model = nested("qwen4_exp", "Qwen4ExpForConditionalGeneration", text);
    seeing(model, qwen3_tower(2560))
}
