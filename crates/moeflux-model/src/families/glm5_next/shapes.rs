//! Shapes of published models.

use serde_json::{Value, json};

use super::super::published::{PublishedShape, nested};

pub(super) const SHAPES: &[PublishedShape] =
    &[PublishedShape { name: "glm-5.3-flash", config: glm_flash }];

/// 321 billion parameters.
fn glm_flash() -> Value {
    let attends = |layer: &usize| layer % 4 == 3;
    let kind =
        |layer| if attends(&layer) { "deepseek_sparse_attention" } else { "linear_attention" };
    let kinds: Vec<&str> = (0..45).map(kind).collect();
    let text = json!({
        "model_type": "glm5_next_text",
        "vocab_size": 154_880,
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 45,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "n_routed_experts": 288,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "norm_topk_prob": true,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 256,
        "qk_rope_head_dim": 0,
        "v_head_dim": 256,
        "layer_types": kinds,
        "linear_num_heads": 64,
        "linear_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "linear_lower_bound": -5.0,
        "index_n_heads": 32,
        "index_head_dim": 128,
        "index_topk": 2048,
        "index_kpool": 4,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "swiglu_limit": 10.0,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 1_048_576,
        "tie_word_embeddings": false,
    });
    nested("glm5_next", "Glm5NextForConditionalGeneration", text)
}
