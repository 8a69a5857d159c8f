//! What families refuse: configs are untrusted, and what is not computed must
//! not be passed over.

use std::path::Path;

use moeflux_backend::{ActivationPrecision, KvType};
use moeflux_core::checkpoint::Config;
use serde_json::{Value, json};

use super::Family;
use crate::load::Survey;
use crate::model::{Build, Variant};

/// Builds from a golden case's config with one key replaced.
fn build(case: &str, key: &str, value: &Value) -> Result<(), String> {
    build_variant(case, key, value, Variant::default())
}

fn build_variant(case: &str, key: &str, value: &Value, variant: Variant) -> Result<(), String> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../moeflux-engine/tests/golden");
    let bytes = std::fs::read(golden.join(case).join("config.json")).unwrap();
    let mut root: Value = serde_json::from_slice(&bytes).unwrap();
    let is_nested = root.get("text_config").is_some();
    let keys = if is_nested { &mut root["text_config"] } else { &mut root };
    keys[key] = value.clone();
    let config = Config::from_value(Path::new("config.json"), root).unwrap();
    let mut survey = Survey::new(None);
    let mut build =
        Build { weights: &mut survey, max_rows: 1, inputs: ActivationPrecision::F32, variant };
    let family = Family::of(&config).map_err(|err| err.to_string())?;
    family.build(&config, &mut build).map(|_| ()).map_err(|err| err.to_string())
}

#[track_caller]
fn check_refused(case: &str, key: &str, value: Value, rule: &str) {
    let got = build(case, key, &value).expect_err("refused");
    let shown = if value.is_null() { "missing".to_owned() } else { value.to_string() };
    assert_eq!(got, format!("config.json: {key} is {shown}; it must {rule}"));
}

#[track_caller]
fn check_taken(case: &str, key: &str, value: Value) {
    build(case, key, &value).unwrap();
}

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
fn qwen3_moe_needs_experts_somewhere() {
    let case = "qwen3_moe-hf";
    check_taken(case, "mlp_only_layers", json!([0]));
    check_taken(case, "decoder_sparse_step", json!(3));
    let rule = "leave experts to some layer";
    check_refused(case, "mlp_only_layers", json!([0, 1, 2]), rule);
    check_refused(case, "decoder_sparse_step", json!(4), rule);
    check_refused(case, "mlp_only_layers", json!([-1]), "be a list of whole numbers");
    check_refused(case, "num_experts_per_tok", json!(11), "be at most num_experts");
    let theta = json!({"rope_theta": 1e6, "rope_type": "longrope"});
    let got = build(case, "rope_scaling", &theta).expect_err("refused");
    assert!(got.starts_with("config.json: rope_type is \"longrope\"; it must be"), "{got}");
}

#[test]
fn mixtral_sees_through_a_window_but_has_no_biases() {
    check_taken("mixtral-hf", "sliding_window", json!(8));
    let rule = "be a whole number from 1 to 1048576";
    check_refused("mixtral-hf", "sliding_window", json!(0), rule);
    check_refused("mixtral-hf", "attention_bias", json!(true), "be false");
}

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

#[test]
fn olmoe_and_granitemoe_refuse_what_they_do_not_compute() {
    check_refused("olmoe-hf", "clip_qkv", json!(8.0), "be absent");
    check_taken("olmoe-hf", "norm_topk_prob", json!(true));
    let case = "granitemoe-hf";
    for key in ["residual_multiplier", "logits_scaling"] {
        check_refused(case, key, json!(0.0), "be at least 1e-6");
    }
    check_refused(case, "embedding_multiplier", json!(-1.0), "be a finite number from 0 to 1e12");
}

#[test]
fn glm4_moe_takes_what_transformers_takes() {
    let case = "glm4_moe-mlx-q4";
    check_taken(case, "use_qk_norm", json!(false));
    check_refused(case, "topk_group", json!(5), "be at most n_group");
    check_refused(case, "scoring_func", json!("softmax"), "be \"sigmoid\"");
}

#[test]
fn families_that_differ_by_names_refuse_what_their_configs_could_say() {
    let case = "hy_v3-hf";
    for key in ["qk_norm", "route_norm", "moe_router_use_sigmoid"] {
        check_refused(case, key, json!(false), "be true");
    }
    check_taken(case, "enable_moe_fp32_combine", json!(true));
    check_refused(case, "mlp_bias", json!(true), "be false");
    let rule = "equal moe_intermediate_size, which is 12";
    check_refused(case, "expert_hidden_dim", json!(16), rule);
    check_refused(case, "mlp_layer_types", json!(["sparse"]), "have num_hidden_layers entries");
    check_refused("qwen3_vl_moe-hf", "norm_topk_prob", json!(false), "be true");
    check_refused("glm4v_moe-hf", "use_qk_norm", json!(true), "be false");
    let case = "solar_open-hf";
    check_taken(case, "intermediate_size", json!(7));
    check_refused(case, "first_k_dense_replace", json!(1), "be 0");
    check_refused(case, "partial_rotary_factor", json!(0.5), "be 1");
    check_refused("kimi_k25-hf", "topk_method", json!("greedy"), "be \"noaux_tc\"");
}

#[test]
fn bailing_moe_is_known_by_its_class_and_refuses_what_it_does_not_compute() {
    let (first, second) = ("bailing_moe-hf", "bailing_moe_v2-hf");
    for case in [first, second] {
        check_refused(case, "norm_head", json!(true), "be false");
        check_refused(case, "hidden_act", json!("gelu"), "be \"silu\" or \"swish\"");
    }
    // Without its class, a config of the second generation is none of the first.
    let got =
        build(second, "architectures", &json!(["BailingMoeForCausalLM"])).expect_err("refused");
    assert_eq!(got, "config.json: score_function is \"sigmoid\"; it must be \"softmax\"");
    check_refused(second, "num_experts_per_tok", json!(1), "be at least 2");
    check_refused(second, "score_function", json!("softmax"), "be \"sigmoid\"");
    let yarn = json!({"type": "yarn", "factor": 2.0});
    check_refused(first, "rope_scaling", yarn, "be absent");
}

#[test]
fn ernie4_5_moe_has_experts_from_one_layer_to_another() {
    let case = "ernie4_5_moe-hf";
    for end in [-1, 1, 2, 1000] {
        check_taken(case, "moe_layer_end_index", json!(end));
    }
    let count = "be a whole number from 0 to 1000";
    check_refused(case, "moe_layer_end_index", json!(-2), count);
    check_refused(case, "moe_layer_end_index", json!(0), "leave experts to some layer");
    check_refused(case, "moe_layer_start_index", json!([1, 1]), "be a whole number from 0 to 2");
    check_refused(case, "use_bias", json!(true), "be false");
    check_refused(case, "hidden_act", json!("gelu"), "be \"silu\" or \"swish\"");
}

#[test]
fn exaone_moe_has_windows_where_it_rotates() {
    let case = "exaone_moe-hf";
    let rule = "have num_hidden_layers entries";
    check_refused(case, "layer_types", json!(["full_attention"]), rule);
    check_refused(case, "sliding_window", json!(0), "be a whole number from 1 to 1048576");
    let rule = "agree with mlp_layer_types and first_k_dense_replace";
    check_refused(case, "is_moe_layer", json!([true, true, true]), rule);
    check_refused(case, "attention_bias", json!(true), "be false");
    let rule = "be a number, for layers that slide";
    let got = build(case, "sliding_window", &Value::Null).expect_err("refused");
    assert_eq!(got, format!("config.json: sliding_window is missing; it must {rule}"));
    // Layers alternate by a word, which is not a number.
    let got = build(case, "layer_types", &Value::Null).expect_err("refused");
    assert!(got.contains("sliding_window_pattern is \"LGL\"; it must be a whole number"), "{got}");
}

#[test]
fn qwen3_next_checks_its_delta_nets() {
    let case = "qwen3_next-mlx-q4";
    let rule = "divide linear_num_value_heads";
    check_refused(case, "linear_num_key_heads", json!(3), rule);
    check_refused(case, "linear_conv_kernel_dim", json!(1), "be at least 2");
    check_refused(case, "layer_types", json!(["full_attention"]), "have num_hidden_layers entries");
}

#[test]
fn gpt_oss_has_a_rope_of_its_own() {
    let case = "gpt_oss-mlx-q4";
    check_taken(case, "rope_scaling", Value::Null);
    check_refused(case, "swiglu_limit", json!(-7.0), "be a finite number from 0 to 1e12");
    check_refused(case, "experts_per_token", json!(1), "equal num_experts_per_tok, which is 3");
    check_taken(case, "experts_per_token", json!(3));
}

#[test]
fn families_with_indexers_refuse_keys_and_values_in_eight_bits() {
    let build = |case, kv_type| {
        build_variant(case, "unknown_key", &json!(1), Variant { kv_type, ..Variant::default() })
    };
    for case in ["deepseek_v32-hf", "glm_moe_dsa-hf"] {
        assert!(build(case, KvType::Bf16).is_ok());
        let got = build(case, KvType::Q8).expect_err("refused");
        assert!(got.starts_with("--kv-type q8: ") && got.ends_with("use bf16 or f32"), "{got}");
    }
    assert!(build("deepseek_v3-hf", KvType::Q8).is_ok());
}

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

#[test]
fn qwen4_exp_refuses_streams_pools_and_tables_that_do_not_fit() {
    let case = "qwen4_exp-hf";
    check_taken(case, "layer_types", Value::Null);
    check_taken(case, "output_gate_type", Value::Null);
    check_taken(case, "ple_layer_ids", json!([]));
    check_taken(case, "eos_token_id", json!(7));
    check_taken(case, "norm_topk_prob", json!(false));
    check_refused(case, "output_gate_type", json!("tanh"), "be null, \"silu\" or \"sigmoid\"");
    check_refused(case, "hc_count", json!(1), "be a whole number from 2 to 64");
    check_refused(case, "indexer_kv_heads", json!(2), "be a whole number from 1 to 1");
    check_refused(case, "indexer_n_heads", Value::Null, "be a whole number from 1 to 4096");
    check_refused(case, "indexer_budget", json!(18), "be divisible by indexer_compress_ratio");
    let rule = "be at least the 8 rotated columns of attention heads";
    check_refused(case, "indexer_head_dim", json!(7), rule);
    let rule = "count layers from 1 to num_hidden_layers";
    check_refused(case, "ple_layer_ids", json!([0]), rule);
    check_refused(case, "ple_layer_ids", json!([3, 5]), rule);
    check_refused(case, "ple_layer_ids", json!([2]), "name no layer with attention");
    let rule = "be divisible by the rows of a token: (ngram_size - 1) * heads_per_ngram";
    check_refused(case, "ple_embed_dim", json!(37), rule);
    let rule = "be a token, or a list of tokens: the first of them ends n-grams";
    check_refused(case, "eos_token_id", Value::Null, rule);
    check_refused(case, "eos_token_id", json!([]), rule);
    check_refused(case, "ngram_size", json!(1), "be a whole number from 2 to 16");
    check_refused(
        case,
        "layer_types",
        json!(["linear_attention", "sliding_attention", "linear_attention", "full_attention"]),
        "hold only \"full_attention\", \"indexed_attention\", \"qwen_sparse_attention\" and \
         \"linear_attention\"",
    );
}
