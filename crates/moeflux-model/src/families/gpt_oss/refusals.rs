//! What configs of the family may say.

use serde_json::{Value, json};

use super::super::testing::{check_refused, check_taken};

#[test]
fn gpt_oss_has_a_rope_of_its_own() {
    let case = "gpt_oss-mlx-q4";
    check_taken(case, "rope_scaling", Value::Null);
    check_refused(case, "swiglu_limit", json!(-7.0), "be a finite number from 0 to 1e12");
    check_refused(case, "experts_per_token", json!(1), "equal num_experts_per_tok, which is 3");
    check_taken(case, "experts_per_token", json!(3));
}
