//! What configs of the family may say.

use serde_json::json;

use super::super::testing::{check_refused, check_taken};

#[test]
fn refuses_what_it_does_not_compute() {
    check_refused("olmoe-hf", "clip_qkv", json!(8.0), "be absent");
    check_taken("olmoe-hf", "norm_topk_prob", json!(true));
}
