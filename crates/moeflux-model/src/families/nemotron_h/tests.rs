//! What configs of the family may say.

use serde_json::{Value, json};

use super::super::testing::{build, check_refused, check_taken};
use super::super::{FAMILIES, resolved};
use super::*;

const CASE: &str = "nemotron_h-hf";

fn blocks_of(keys: Value) -> Result<Vec<Block>, String> {
    let mut root = keys;
    root["model_type"] = json!("nemotron_h");
    blocks(&resolved(root).unwrap()).map_err(|err| err.to_string())
}

#[test]
fn layers_follow_the_pattern_or_the_list() {
    let want = vec![Block::Mamba, Block::Moe, Block::Attention, Block::Dense];
    assert_eq!(blocks_of(json!({"hybrid_override_pattern": "ME*-"})), Ok(want.clone()));
    let published = json!(["linear_attention", "moe", "full_attention", "mlp"]);
    let older = json!(["mamba", "moe", "attention", "mlp"]);
    for list in [published, older] {
        for n_layers in [json!(4), Value::Null] {
            for key in ["layers_block_type", "layer_types"] {
                let keys = json!({key: list, "num_hidden_layers": n_layers});
                assert_eq!(blocks_of(keys), Ok(want.clone()));
            }
        }
    }
    let missing = "config.json: hybrid_override_pattern is missing; it must be a string";
    assert_eq!(blocks_of(json!({})), Err(missing.into()));
}

#[test]
fn patterns_must_be_whole() {
    let key = "hybrid_override_pattern";
    check_refused(CASE, key, json!("MEM*EM-X"), "hold only the letters M, E, * and -");
    check_refused(CASE, key, json!("MMMMMMMM"), "leave experts to some layer");
    let rule = "be 8, as hybrid_override_pattern has it, or absent";
    check_refused(CASE, "num_hidden_layers", json!(7), rule);
    check_taken(CASE, "num_hidden_layers", Value::Null);
    let rule = "hold only \"linear_attention\", \"full_attention\", \"moe\" and \"mlp\", or \
                \"mamba\" and \"attention\"";
    check_refused(CASE, "layers_block_type", json!(["moe", "sliding_attention"]), rule);
}

#[test]
fn what_is_not_computed_is_refused() {
    check_taken(CASE, "unknown_key", json!(1));
    for key in ["attention_bias", "mamba_proj_bias", "mlp_bias", "use_bias"] {
        check_refused(CASE, key, json!(true), "be false");
    }
    check_refused(CASE, "mlp_hidden_act", json!("silu"), "be \"relu2\"");
    check_refused(CASE, "mamba_hidden_act", json!("gelu"), "be \"silu\"");
    check_refused(CASE, "sliding_window", json!(64), "be absent");
    check_refused(CASE, "n_shared_experts", json!(2), "be 1");
    check_refused(CASE, "n_groups", json!(4), "divide mamba_num_heads");
    check_refused(CASE, "ssm_state_size", json!(513), "be a whole number from 1 to 512");
    check_refused(CASE, "conv_kernel", json!(1), "be a whole number from 2 to 64");
    check_refused(CASE, "num_key_value_heads", json!(4), "divide num_attention_heads");
    check_refused(CASE, "norm_eps", json!(0.5), "equal layer_norm_epsilon, which is 0.00001");
    let got = build(CASE, "moe_latent_size", &json!(0)).expect_err("refused");
    assert!(got.starts_with("config.json: moe_latent_size is 0; it must be a whole number"));
}

#[test]
fn published_models_have_the_parts_that_their_publisher_counts() {
    let family = FAMILIES.iter().find(|family| family.name == "nemotron_h").unwrap();
    let counts = family.shapes.iter().map(|shape| {
        let config = resolved((shape.config)()).unwrap();
        let blocks = blocks(&config).unwrap();
        [Block::Mamba, Block::Moe, Block::Attention]
            .map(|kind| blocks.iter().filter(|block| **block == kind).count())
    });
    assert_eq!(counts.collect::<Vec<_>>(), [[23, 23, 6], [40, 40, 8]]);
}
