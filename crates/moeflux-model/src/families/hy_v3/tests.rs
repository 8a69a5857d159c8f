//! What configs of the family may say.

use serde_json::json;

use super::super::testing::{check_refused, check_taken};

#[test]
fn refuses_what_its_config_could_say() {
    let case = "hy_v3-hf";
    for key in ["qk_norm", "route_norm", "moe_router_use_sigmoid"] {
        check_refused(case, key, json!(false), "be true");
    }
    check_taken(case, "enable_moe_fp32_combine", json!(true));
    check_refused(case, "mlp_bias", json!(true), "be false");
    let rule = "equal moe_intermediate_size, which is 12";
    check_refused(case, "expert_hidden_dim", json!(16), rule);
    check_refused(case, "mlp_layer_types", json!(["sparse"]), "have num_hidden_layers entries");
}
