//! Shapes of published models.

use serde_json::{Value, json};

use super::super::published::{PublishedShape, with};

pub(super) const SHAPES: &[PublishedShape] = &[
    PublishedShape { name: "deepseek-v4-flash", config: flash },
    PublishedShape { name: "deepseek-v4-pro", config: pro },
];

/// Positions of an entry in the layers that an indexer chooses for, and in the others.
const CHOSEN: usize = 4;
const ALL: usize = 128;

/// Ratios of `n_layers` layers, the first two of which have `first`, and of multi-token prediction.
fn ratios(n_layers: usize, first: usize) -> Vec<usize> {
    let turns = [CHOSEN, ALL].into_iter().cycle().take(n_layers - 2);
    [first; 2].into_iter().chain(turns).chain([0]).collect()
}

/// 284 billion parameters.
fn flash() -> Value {
    let model = json!({
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": "deepseek_v4",
        "vocab_size": 129_280,
        "hidden_size": 4096,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 43,
        "num_hash_layers": 3,
        "num_attention_heads": 64,
        "num_key_value_heads": 1,
        "n_shared_experts": 1,
        "n_routed_experts": 256,
        "num_experts_per_tok": 6,
        "routed_scaling_factor": 1.5,
        "scoring_func": "sqrtsoftplus",
        "norm_topk_prob": true,
        "swiglu_limit": 10.0,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 1_048_576,
        "attention_bias": false,
        "tie_word_embeddings": false,
    });
    let attention = json!({
        "head_dim": 512,
        "qk_rope_head_dim": 64,
        "q_lora_rank": 1024,
        "o_lora_rank": 1024,
        "o_groups": 8,
        "sliding_window": 128,
        "compress_ratios": ratios(43, 0),
        "index_n_heads": 64,
        "index_head_dim": 128,
        "index_topk": 512,
        "hc_mult": 4,
        "hc_eps": 1e-6,
        "hc_sinkhorn_iters": 20,
        "rope_theta": 10_000.0,
        "compress_rope_theta": 160_000.0,
        "rope_scaling": {
            "type": "yarn",
            "factor": 16.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "original_max_position_embeddings": 65_536,
        },
    });
    with(model, attention)
}

/// 1.6 trillion parameters.
fn pro() -> Value {
    let changes = json!({
        "hidden_size": 7168,
        "moe_intermediate_size": 3072,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "n_routed_experts": 384,
        "q_lora_rank": 1536,
        "o_groups": 16,
        "index_topk": 1024,
        "routed_scaling_factor": 2.5,
        "compress_ratios": ratios(61, ALL),
    });
    with(flash(), changes)
}
