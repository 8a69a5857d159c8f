//! What configs of the family may say.

use serde_json::json;

use super::super::testing::{build, check_refused};

#[test]
fn bailing_moe_is_known_by_its_class_and_refuses_what_it_does_not_compute() {
    let (first, second) = ("bailing_moe-hf", "bailing_moe_v2-hf");
    for case in [first, second] {
        check_refused(case, "norm_head", json!(true), "be false");
        check_refused(case, "hidden_act", json!("gelu"), "be \"silu\" or \"swish\"");
    }
    // Without its class, a config of the second generation is none of the first.
    let got =
        build(second, "architectures", &json!(["BailingMoeForCausalLM"])).expect_err("refused");
    assert_eq!(got, "config.json: score_function is \"sigmoid\"; it must be \"softmax\"");
    check_refused(second, "num_experts_per_tok", json!(1), "be at least 2");
    check_refused(second, "score_function", json!("softmax"), "be \"sigmoid\"");
    let yarn = json!({"type": "yarn", "factor": 2.0});
    check_refused(first, "rope_scaling", yarn, "be absent");
}
