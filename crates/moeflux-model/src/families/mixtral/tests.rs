//! What configs of the family may say.

use serde_json::json;

use super::super::testing::{check_refused, check_taken};

#[test]
fn mixtral_sees_through_a_window_but_has_no_biases() {
    check_taken("mixtral-hf", "sliding_window", json!(8));
    let rule = "be a whole number from 1 to 1048576";
    check_refused("mixtral-hf", "sliding_window", json!(0), rule);
    check_refused("mixtral-hf", "attention_bias", json!(true), "be false");
}
