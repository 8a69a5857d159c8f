//! What configs of the family may say.

use serde_json::json;

use super::super::testing::check_refused;

#[test]
fn makes_the_weights_of_experts_add_up_to_1() {
    check_refused("qwen3_vl_moe-hf", "norm_topk_prob", json!(false), "be true");
}
