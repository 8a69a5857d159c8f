//! What configs of the family may say.

use serde_json::json;

use super::super::testing::{check_refused, check_taken};

#[test]
fn glm4_moe_takes_what_transformers_takes() {
    let case = "glm4_moe-mlx-q4";
    check_taken(case, "use_qk_norm", json!(false));
    check_refused(case, "topk_group", json!(5), "be at most n_group");
    check_refused(case, "scoring_func", json!("softmax"), "be \"sigmoid\"");
}
