//! What configs of the family may say.

use serde_json::{Value, json};

use super::super::testing::{build, check_refused, check_taken};
use super::super::{FAMILIES, resolved};
use super::*;

const CASE: &str = "kimi_linear-hf";

fn kinds_of(keys: Value) -> Result<Vec<bool>, String> {
    let mut root = keys;
    root["model_type"] = json!("kimi_linear");
    full_attention(&resolved(root).unwrap(), 6).map_err(|err| err.to_string())
}

#[test]
fn layers_are_listed_from_one_or_typed_or_every_fourth_is_full() {
    let lists = |full: Value, linear: Value| {
        kinds_of(json!({LINEAR: {"full_attn_layers": full, "kda_layers": linear}}))
    };
    let want = Ok(vec![false, true, false, false, false, true]);
    assert_eq!(lists(json!([2, 6]), json!([1, 3, 4, 5])), want);
    let (linear, full) = ("linear_attention", "full_attention");
    let types = json!({"layer_types": [linear, full, linear, linear, linear, full]});
    assert_eq!(kinds_of(types), want);
    let every_fourth = Ok(vec![false, false, false, false, true, false]);
    assert_eq!(kinds_of(json!({})), every_fourth);
    assert_eq!(kinds_of(json!({LINEAR: {"head_dim": 16}})), every_fourth);

    let rule = "it must hold each layer from 1 to 6 in one list";
    for (full, linear, key) in [
        (json!([0]), json!([1]), "full_attn_layers is [0]"),
        (json!([7]), json!([1]), "full_attn_layers is [7]"),
        (json!([2, 2]), json!([1]), "full_attn_layers is [2,2]"),
        (json!([2]), json!([2]), "kda_layers is [2]"),
    ] {
        let want = format!("config.json: linear_attn_config.{key}; {rule}");
        assert_eq!(lists(full, linear), Err(want));
    }
    let got = lists(json!([2, 6]), json!([1, 3, 4])).expect_err("a layer is in no list");
    assert!(got.ends_with("have every layer in full_attn_layers or in kda_layers"), "{got}");
    let got = kinds_of(json!({LINEAR: {"full_attn_layers": [2]}})).expect_err("a list is missing");
    assert!(got.contains("kda_layers is missing"), "{got}");
}

#[test]
fn what_is_not_computed_is_refused() {
    check_taken(CASE, "unknown_key", json!(1));
    check_taken(CASE, "use_grouped_topk", json!(false));
    check_refused(CASE, "mla_use_nope", json!(false), "be true");
    check_refused(CASE, "moe_router_activation_func", json!("softmax"), "be \"sigmoid\"");
    check_refused(CASE, LINEAR, json!(5), "be an object");
    check_refused(CASE, "moe_layer_freq", json!(2), "be 1");
    check_refused(CASE, "num_key_value_heads", json!(1), "equal num_attention_heads");
    for (key, value, range) in [
        ("head_dim", 513, "1 to 512"),
        ("num_heads", 0, "1 to 1024"),
        ("short_conv_kernel_size", 1, "2 to 64"),
    ] {
        let got = build(CASE, LINEAR, &json!({key: value})).expect_err("refused");
        let want = format!(
            "config.json: {LINEAR}.{key} is {value}; it must be a whole number from {range}"
        );
        assert_eq!(got, want);
    }
}

#[test]
fn the_published_model_has_the_layers_that_its_publisher_counts() {
    let family = FAMILIES.iter().find(|family| family.name == "kimi_linear").unwrap();
    for shape in family.shapes {
        let config = resolved((shape.config)()).unwrap();
        let kinds = full_attention(&config, 27).unwrap();
        assert_eq!(kinds.iter().filter(|is_full| **is_full).count(), 7);
        assert!(kinds[26] && !kinds[0]);
    }
}
