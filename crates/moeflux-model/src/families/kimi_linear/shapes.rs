//! Shapes of published models.

use serde_json::{Value, json};

use super::super::published::PublishedShape;

pub(super) const SHAPES: &[PublishedShape] =
    &[PublishedShape { name: "kimi-linear-48b-a3b", config: kimi_linear }];

/// 49 billion parameters.
fn kimi_linear() -> Value {
    let full = [3, 7, 11, 15, 19, 23, 26];
    let kind = |layer| if full.contains(&layer) { "full_attention" } else { "linear_attention" };
    let kinds: Vec<&str> = (0..27).map(kind).collect();
    json!({
        "architectures": ["KimiLinearForCausalLM"],
        "model_type": "kimi_linear",
        "vocab_size": 163_840,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "moe_intermediate_size": 1024,
        "num_hidden_layers": 27,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "n_shared_experts": 1,
        "num_local_experts": 256,
        "num_experts_per_tok": 8,
        "routed_scaling_factor": 2.446,
        "kv_lora_rank": 512,
        "q_lora_rank": null,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "qk_nope_head_dim": 128,
        "mla_use_nope": true,
        "n_group": 1,
        "topk_group": 1,
        "use_grouped_topk": true,
        "norm_topk_prob": true,
        "moe_router_activation_func": "sigmoid",
        "moe_layer_freq": 1,
        "first_k_dense_replace": 1,
        "hidden_act": "silu",
        "max_position_embeddings": 1_048_576,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "rope_scaling": null,
        "linear_num_heads": 32,
        "linear_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "layer_types": kinds,
        "tie_word_embeddings": false,
        "dtype": "bfloat16",
    })
}
