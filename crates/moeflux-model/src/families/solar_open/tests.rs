//! What configs of the family may say.

use serde_json::json;

use super::super::testing::{check_refused, check_taken};

#[test]
fn refuses_what_its_config_could_say() {
    let case = "solar_open-hf";
    check_taken(case, "intermediate_size", json!(7));
    check_refused(case, "first_k_dense_replace", json!(1), "be 0");
    check_refused(case, "partial_rotary_factor", json!(0.5), "be 1");
}
