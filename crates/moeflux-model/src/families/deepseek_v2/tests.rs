//! What configs of the family may say.

use serde_json::{Value, json};

use super::super::testing::{check_latent_refused, latent_config, shape};

/// Keys in addition to those of a dense first layer.
fn keys(more: Value) -> Value {
    let mut all = json!({"first_k_dense_replace": 1});
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    all
}

#[test]
fn groups_count_where_the_method_says_so() {
    let n_eligible = |method: &str| {
        let groups = json!({"n_group": 4, "topk_group": 2, "topk_method": method});
        shape(latent_config("deepseek_v2", &keys(groups))).unwrap().n_eligible
    };
    assert_eq!(n_eligible("greedy"), 8);
    assert_eq!(n_eligible("group_limited_greedy"), 4);
}

#[test]
fn refuses_what_it_does_not_compute() {
    let refused = |more, message| check_latent_refused("deepseek_v2", keys(more), message);
    let message = "norm_topk_prob is true; it must be false";
    refused(json!({"norm_topk_prob": true}), message);
    let message = "scoring_func is \"sigmoid\"; it must be \"softmax\"";
    refused(json!({"scoring_func": "sigmoid"}), message);
    let message = "topk_method is \"noaux_tc\"; it must be \"greedy\" or \"group_limited_greedy\"";
    refused(json!({"topk_method": "noaux_tc"}), message);
    let message = "moe_layer_freq is 2; it must be 1";
    refused(json!({"moe_layer_freq": 2}), message);
    let grouped = |n: usize, kept: usize| {
        let method = "group_limited_greedy";
        json!({"topk_method": method, "n_group": n, "topk_group": kept})
    };
    refused(grouped(2, 3), "topk_group is 3; it must be at most n_group");
    let message = "n_group is 5; it must divide the experts into groups of two and more";
    refused(grouped(5, 1), message);
    let message = "num_experts_per_tok is missing; it must be a whole number from 1 to 1024";
    refused(json!({"num_experts_per_tok": null}), message);
}
