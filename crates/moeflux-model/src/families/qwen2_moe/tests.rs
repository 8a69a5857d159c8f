//! What configs of the family may say.

use serde_json::{Value, json};

use super::super::testing::{check_refused, check_taken};

#[test]
fn every_layer_sees_everything() {
    let case = "qwen2_moe-hf";
    check_refused(case, "use_sliding_window", json!(true), "be false");
    let types = json!(["full_attention", "sliding_attention", "full_attention"]);
    check_refused(case, "layer_types", types, "hold only \"full_attention\"");
    check_taken(case, "layer_types", Value::Null);
    // Windows that nothing uses are published.
    check_taken(case, "sliding_window", json!(32_768));
}

#[test]
fn layers_may_be_dense_and_weights_may_add_up_to_one() {
    let case = "qwen2_moe-hf";
    for (key, value) in [
        ("norm_topk_prob", json!(true)),
        ("mlp_only_layers", json!([0])),
        ("decoder_sparse_step", json!(2)),
        ("qkv_bias", json!(false)),
        ("head_dim", json!(6)),
    ] {
        check_taken(case, key, value);
    }
    check_refused(case, "decoder_sparse_step", json!(9), "leave experts to some layer");
    check_refused(case, "num_key_value_heads", json!(64), "divide num_attention_heads");
    check_refused(case, "hidden_act", json!("gelu"), "be \"silu\" or \"swish\"");
}
