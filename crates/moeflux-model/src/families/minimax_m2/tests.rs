//! What configs of the family may say.

use serde_json::json;

use super::super::testing::{check_refused, check_taken};

#[test]
fn minimax_m2_refuses_what_its_config_could_say() {
    let case = "minimax_m2-mlx-q4";
    check_taken(case, "attn_type_list", json!([1, 1]));
    check_refused(case, "attn_type_list", json!([1, 0]), "hold only 1");
    check_refused(case, "scoring_func", json!("softmax"), "be \"sigmoid\"");
    check_refused(case, "qk_norm_type", json!("per_head"), "be \"per_layer\"");
    check_refused(case, "use_qk_norm", json!(false), "be true");
    check_refused(case, "shared_intermediate_size", json!(64), "be 0");
    check_refused(case, "sliding_window", json!(64), "be absent");
    check_refused(case, "rotary_dim", json!(3), "be an even number up to head_dim");
}
