//! What configs of the family may say.

use serde_json::{Value, json};

use super::super::testing::{build, check_refused};

#[test]
fn exaone_moe_has_windows_where_it_rotates() {
    let case = "exaone_moe-hf";
    let rule = "have num_hidden_layers entries";
    check_refused(case, "layer_types", json!(["full_attention"]), rule);
    check_refused(case, "sliding_window", json!(0), "be a whole number from 1 to 1048576");
    let rule = "agree with mlp_layer_types and first_k_dense_replace";
    check_refused(case, "is_moe_layer", json!([true, true, true]), rule);
    check_refused(case, "attention_bias", json!(true), "be false");
    let rule = "be a number, for layers that slide";
    let got = build(case, "sliding_window", &Value::Null).expect_err("refused");
    assert_eq!(got, format!("config.json: sliding_window is missing; it must {rule}"));
    // Layers alternate by a word, which is not a number.
    let got = build(case, "layer_types", &Value::Null).expect_err("refused");
    assert!(got.contains("sliding_window_pattern is \"LGL\"; it must be a whole number"), "{got}");
}
