//! What configs of the family may say.

use serde_json::json;

use super::super::testing::check_refused;

#[test]
fn has_no_norms_of_queries_and_keys() {
    check_refused("glm4v_moe-hf", "use_qk_norm", json!(true), "be false");
}
