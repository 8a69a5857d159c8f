//! What configs of the family may say.

use serde_json::json;

use super::super::testing::check_refused;

#[test]
fn qwen3_next_checks_its_delta_nets() {
    let case = "qwen3_next-mlx-q4";
    let rule = "divide linear_num_value_heads";
    check_refused(case, "linear_num_key_heads", json!(3), rule);
    check_refused(case, "linear_conv_kernel_dim", json!(1), "be at least 2");
    check_refused(case, "layer_types", json!(["full_attention"]), "have num_hidden_layers entries");
}
