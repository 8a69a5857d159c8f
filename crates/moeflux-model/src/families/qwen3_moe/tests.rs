//! What configs of the family may say.

use serde_json::json;

use super::super::testing::{build, check_refused, check_taken};

#[test]
fn qwen3_moe_needs_experts_somewhere() {
    let case = "qwen3_moe-hf";
    check_taken(case, "mlp_only_layers", json!([0]));
    check_taken(case, "decoder_sparse_step", json!(3));
    let rule = "leave experts to some layer";
    check_refused(case, "mlp_only_layers", json!([0, 1, 2]), rule);
    check_refused(case, "decoder_sparse_step", json!(4), rule);
    check_refused(case, "mlp_only_layers", json!([-1]), "be a list of whole numbers");
    check_refused(case, "num_experts_per_tok", json!(11), "be at most num_experts");
    let theta = json!({"rope_theta": 1e6, "rope_type": "longrope"});
    let got = build(case, "rope_scaling", &theta).expect_err("refused");
    assert!(got.starts_with("config.json: rope_type is \"longrope\"; it must be"), "{got}");
}
