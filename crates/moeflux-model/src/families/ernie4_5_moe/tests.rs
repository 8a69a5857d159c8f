//! What configs of the family may say.

use serde_json::json;

use super::super::testing::{check_refused, check_taken};

#[test]
fn ernie4_5_moe_has_experts_from_one_layer_to_another() {
    let case = "ernie4_5_moe-hf";
    for end in [-1, 1, 2, 1000] {
        check_taken(case, "moe_layer_end_index", json!(end));
    }
    let count = "be a whole number from 0 to 1000";
    check_refused(case, "moe_layer_end_index", json!(-2), count);
    check_refused(case, "moe_layer_end_index", json!(0), "leave experts to some layer");
    check_refused(case, "moe_layer_start_index", json!([1, 1]), "be a whole number from 0 to 2");
    check_refused(case, "use_bias", json!(true), "be false");
    check_refused(case, "hidden_act", json!("gelu"), "be \"silu\" or \"swish\"");
}
