//! What configs of the family may say.

use serde_json::{Value, json};

use super::super::resolved;
use super::super::testing::{build, check_refused, check_taken};
use super::*;

const CASE: &str = "glm5_next-hf";

fn decay_of(keys: Value) -> Result<Decay, String> {
    let mut root = keys;
    root["model_type"] = json!("glm5_next_text");
    decay(&resolved(root).unwrap()).map_err(|err| err.to_string())
}

#[test]
fn states_decay_within_a_bound_unless_it_is_taken_away() {
    let bounded = |bound| Ok(Decay::Bounded { bound });
    assert_eq!(decay_of(json!({})), bounded(-5.0));
    assert_eq!(decay_of(json!({"linear_lower_bound": -3.0})), bounded(-3.0));
    assert_eq!(decay_of(json!({"linear_lower_bound": null})), Ok(Decay::Columns));
    let nested = |keys: Value| decay_of(json!({LINEAR: keys}));
    assert_eq!(nested(json!({"gate_lower_bound": -2.0})), bounded(-2.0));
    assert_eq!(nested(json!({"gate_lower_bound": null})), bounded(-5.0));
    let unsafe_gate = json!({"gate_lower_bound": null, "safe_gate": false});
    assert_eq!(nested(unsafe_gate), Ok(Decay::Columns));
    let want = "config.json: linear_attn_config.gate_lower_bound is 1.0; it must be a number from -1000 to below 0";
    assert_eq!(nested(json!({"gate_lower_bound": 1.0})), Err(want.into()));
}

#[test]
fn what_is_not_computed_is_refused() {
    check_taken(CASE, "unknown_key", json!(1));
    for key in ["mhc", "mla_use_nope", "index_kpool_always_select_tail", "index_kpool_compress"] {
        check_refused(CASE, key, json!(false), "be true");
    }
    check_refused(CASE, "index_topk", json!(17), "be divisible by index_kpool");
    check_refused(CASE, "swiglu_limit", json!(0.0), "be above 0");
    check_refused(CASE, "hc_mult", json!(9), "be a whole number from 1 to 8");
    check_refused(CASE, "hc_eps", json!(1.5), "be at least 0 and below 1");
    let types = json!(["full", "full", "full", "shared"]);
    check_refused(CASE, "indexer_types", types, "give the first layer that attends an indexer");
    let got = build(CASE, "q_lora_rank", &Value::Null).expect_err("refused");
    assert!(got.contains("q_lora_rank"), "{got}");
}
