//! What configs of the family may say.

use serde_json::json;

use super::super::testing::check_refused;

#[test]
fn refuses_factors_that_it_cannot_divide_by() {
    let case = "granitemoe-hf";
    check_refused(case, "logits_scaling", json!(0.0), "be at least 1e-6");
    check_refused(case, "embedding_multiplier", json!(-1.0), "be a finite number from 0 to 1e12");
}
