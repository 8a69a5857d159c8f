//! What configs of the family may say.

use serde_json::{Value, json};

use super::super::testing::{check_latent_refused, check_refused, latent_config, shape};

#[test]
fn layers_have_experts_where_the_config_says_so() {
    let n_moe =
        |model_type, more: Value| shape(latent_config(model_type, &more)).unwrap().n_moe_layers;
    assert_eq!(n_moe("deepseek_v3", json!({})), 1);
    assert_eq!(n_moe("glm4_moe_lite", json!({})), 3);
    assert_eq!(n_moe("kimi_k2", json!({"first_k_dense_replace": 0})), 4);
    let types = json!({"mlp_layer_types": ["sparse", "dense", "sparse", "dense"]});
    assert_eq!(n_moe("glm4_moe_lite", types), 2);
}

#[test]
fn a_position_takes_one_latent_and_one_key() {
    let shape = shape(latent_config("deepseek_v3", &json!({}))).unwrap();
    let bytes: usize = shape.caches.iter().map(|cache| cache.bytes_per_position()).sum();
    assert_eq!(bytes, 4 * (16 + 4) * 4);
}

#[test]
fn refuses_what_it_does_not_compute() {
    let refused = |more, message| check_latent_refused("deepseek_v3", more, message);
    let message = "topk_method is \"greedy\"; it must be \"noaux_tc\"";
    refused(json!({"topk_method": "greedy"}), message);
    let message = "scoring_func is \"softmax\"; it must be \"sigmoid\"";
    refused(json!({"scoring_func": "softmax"}), message);
    let message = "hidden_act is \"gelu\"; it must be \"silu\" or \"swish\"";
    refused(json!({"hidden_act": "gelu"}), message);
    let message = "num_key_value_heads is 1; it must equal num_attention_heads";
    refused(json!({"num_key_value_heads": 1}), message);
    let message = "partial_rotary_factor is 0.5; it must be 1 with rope_type \"yarn\"";
    let yarn = json!({"type": "yarn", "factor": 2.0});
    refused(json!({"partial_rotary_factor": 0.5, "rope_scaling": yarn}), message);
    let message = "qk_rope_head_dim is 5; it must be even";
    refused(json!({"qk_rope_head_dim": 5}), message);
    let message = "kv_lora_rank is 16385; it must be a whole number from 1 to 16384";
    refused(json!({"kv_lora_rank": 16_385}), message);
    let message = "first_k_dense_replace is 4; it must be a whole number from 0 to 3";
    refused(json!({"first_k_dense_replace": 4}), message);
    let message = "moe_layer_freq is 5; it must be 1";
    refused(json!({"moe_layer_freq": 5}), message);
    let refused = |more, message| check_latent_refused("glm4_moe_lite", more, message);
    let message = "partial_rotary_factor is 0.5; it must be 1";
    refused(json!({"partial_rotary_factor": 0.5}), message);
    let message = "mlp_layer_types is [\"dense\"]; it must have num_hidden_layers entries";
    refused(json!({"mlp_layer_types": ["dense"]}), message);
    let types = ["dense", "moe", "dense", "dense"];
    let message = "mlp_layer_types is [\"dense\",\"moe\",\"dense\",\"dense\"]; \
                   it must hold only \"dense\" and \"sparse\"";
    refused(json!({"mlp_layer_types": types}), message);
}

#[test]
fn kimi_chooses_experts_as_deepseek_does() {
    check_refused("kimi_k25-hf", "topk_method", json!("greedy"), "be \"noaux_tc\"");
}
