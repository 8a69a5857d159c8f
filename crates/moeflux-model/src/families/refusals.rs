//! What all families refuse, or several: configs are untrusted, and what is not computed must not be
//! passed over.

use moeflux_backend::KvType;
use serde_json::{Value, json};

use super::testing::{build, build_variant, check_refused, check_taken};
use crate::model::Variant;

#[test]
fn every_family_checks_what_decoders_share() {
    let cases = [
        "deepseek_v3-hf",
        "deepseek_v32-mlx-q4",
        "exaone_moe-hf",
        "glm4_moe-mlx-q4",
        "glm4v_moe-hf",
        "hy_v3-hf",
        "granitemoe-hf",
        "kimi_k25-hf",
        "glm4_moe_lite-mlx-q4",
        "gpt_oss-mlx-q4",
        "minimax_m2-mlx-q4",
        "mixtral-hf",
        "olmoe-hf",
        "qwen2_moe-hf",
        "qwen3_moe-hf",
        "qwen3_next-mlx-q4",
        "qwen3_vl_moe-hf",
        "qwen4_exp-hf",
        "solar_open-hf",
    ];
    for case in cases {
        check_taken(case, "unknown_key", json!(1));
        check_refused(case, "hidden_act", json!("gelu"), "be \"silu\" or \"swish\"");
        let count = "be a whole number from 1 to ";
        check_refused(case, "num_hidden_layers", json!(0), &format!("{count}1000"));
        check_refused(case, "hidden_size", json!(1u64 << 40), &format!("{count}131072"));
        check_refused(case, "num_attention_heads", json!(0), &format!("{count}4096"));
        let got = build(case, "num_experts_per_tok", &Value::Null).expect_err("refused");
        let null =
            "config.json: num_experts_per_tok is null; it must have a value, or be absent for ";
        assert!(got.starts_with(null), "{got}");
        check_refused(case, "rms_norm_eps", json!(-1.0), "be a finite number from 0 to 1e12");
    }
}

#[test]
fn constants_in_place_of_experts_are_refused() {
    let rule =
        "be absent: constants in place of experts are not computed; use the model with all experts";
    let experts = json!({"0": [1, 3]});
    for case in ["qwen3_moe-hf", "qwen3_vl_moe-hf", "deepseek_v4-hf"] {
        check_refused(case, "approximate_experts", experts.clone(), rule);
        check_taken(case, "approximate_experts", json!({}));
        for part in ["compression_config", "quantization_config"] {
            let value = json!({"transform_config": {"expert_substitution": {"version": 1}}});
            let got = build(case, part, &value).expect_err("refused");
            let want =
                format!("config.json: expert_substitution is {{\"version\":1}}; it must {rule}");
            assert_eq!(got, want, "{case}, {part}");
        }
    }
}

#[test]
fn grouped_query_families_check_their_attention() {
    let cases = [
        "glm4_moe-mlx-q4",
        "gpt_oss-mlx-q4",
        "granitemoe-hf",
        "mixtral-hf",
        "olmoe-hf",
        "qwen3_moe-hf",
    ];
    for case in cases {
        check_refused(case, "num_key_value_heads", json!(64), "divide num_attention_heads");
        let rule = if case == "mixtral-hf" { "be false" } else { "be true or false" };
        check_refused(case, "attention_bias", json!("yes"), rule);
    }
}

#[test]
fn families_with_indexers_refuse_keys_and_values_in_eight_bits() {
    let build = |case, kv_type| {
        build_variant(case, "unknown_key", &json!(1), Variant { kv_type, ..Variant::default() })
    };
    for case in ["deepseek_v32-hf", "glm_moe_dsa-hf"] {
        assert!(build(case, KvType::Bf16).is_ok());
        let got = build(case, KvType::Q8).expect_err("refused");
        assert!(got.starts_with("kv_type q8: ") && got.ends_with("use bf16 or f32"), "{got}");
    }
    assert!(build("deepseek_v3-hf", KvType::Q8).is_ok());
}
