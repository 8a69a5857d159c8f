//! What configs of the family may say.

use serde_json::{Value, json};

use super::super::testing::{build, check_refused, check_taken};

#[test]
fn gemma4_refuses_what_other_models_of_its_family_have() {
    for case in ["gemma4-hf", "gemma4-text"] {
        check_taken(case, "unknown_key", json!(1));
        let dense = build(case, "enable_moe_block", &json!(false)).unwrap_err();
        assert!(
            dense.contains("moeflux runs Mixture-of-Experts models") && dense.contains("is dense")
        );
        let rule = "be 0: embeddings of single layers are not computed";
        check_refused(case, "hidden_size_per_layer_input", json!(256), rule);
        check_refused(case, "num_kv_shared_layers", json!(2), "be 0");
        check_refused(case, "hidden_activation", json!("silu"), "be \"gelu_pytorch_tanh\"");
        let rule = "be null or \"vision\"";
        check_refused(case, "use_bidirectional_attention", json!("all"), rule);
        check_taken(case, "use_bidirectional_attention", Value::Null);
        check_refused(case, "final_logit_softcapping", json!(0.0), "be above 0");
        check_refused(case, "top_k_experts", json!(11), "be at most num_experts");
        check_refused(case, "num_experts", Value::Null, "be a whole number from 1 to 65535");
        check_refused(case, "num_key_value_heads", json!(3), "divide num_attention_heads");
        check_refused(
            case,
            "layer_types",
            json!(["full_attention"]),
            "have num_hidden_layers entries",
        );
    }
    check_refused(
        "gemma4-hf",
        "num_global_key_value_heads",
        json!(3),
        "divide num_attention_heads",
    );
}

#[test]
fn gemma4_reads_rotary_keys_of_every_type_of_layers() {
    let case = "gemma4-hf";
    check_taken(case, "rope_parameters", Value::Null);
    let sliding = json!({"rope_type": "default"});
    let flat = json!({"rope_type": "default", "rope_theta": 10000.0});
    let rule = "have an object of rotary keys for full_attention";
    check_refused(case, "rope_parameters", flat, rule);
    let full = json!({"rope_type": "proportional", "partial_rotary_factor": 1.5});
    let both = json!({"sliding_attention": sliding, "full_attention": full});
    let got = build(case, "rope_parameters", &both).expect_err("refused");
    assert_eq!(got, "config.json: partial_rotary_factor is 1.5; it must be from 0 to 1");
    let both = json!({"sliding_attention": sliding, "full_attention": sliding});
    check_taken(case, "rope_parameters", both);
    check_refused(case, "rope_scaling", json!({"type": "yarn"}), "be absent");
}

#[test]
fn gemma4_takes_heads_of_single_layers() {
    let case = "gemma4-hf";
    let keys = json!({"1": {"head_dim": 24, "num_key_value_heads": 1}, "3": {"head_dim": 0}});
    let got = build(case, "per_layer_config", &keys).expect_err("refused");
    let rule = "it must have a whole number from 1 to 16384 as head_dim of layer 3";
    assert!(got.ends_with(rule), "{got}");
    let full = json!({"head_dim": 24, "num_key_value_heads": 1});
    check_taken(case, "per_layer_config", json!({"1": full, "3": full}));
}
