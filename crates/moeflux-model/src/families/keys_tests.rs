//! What families read of configs, key by key.

use super::super::{FAMILIES, resolved};
use super::*;

fn rope(root: Value, key: &str) -> Option<Value> {
    resolved(root).unwrap().get_rope(key).cloned()
}

#[track_caller]
fn check_refused(root: Value, message: &str) {
    let got = resolved(root).expect_err("refused").to_string();
    assert_eq!(got, format!("config.json: {message}"));
}

#[test]
fn every_family_takes_its_own_defaults() {
    for family in FAMILIES {
        let mut root = json!({"model_type": family.model_types[0]});
        if let Some(switch) = family.experts_switch {
            root[switch] = json!(true);
        }
        let config = resolved(root).unwrap();
        let table = FamilyKeys::parse(family.keys);
        for key in table.keys.keys() {
            let _ = config.get(key);
        }
        assert!(config.usize("hidden_size").unwrap() > 1000, "{}", family.name);
        let has_several = table.rope.by_layer_type || table.rope.compressed_theta.is_some();
        assert!(has_several || config.rope_f32("rope_theta").unwrap().is_some());
    }
    let scale = |model_type: &str| {
        resolved(json!({"model_type": model_type})).unwrap().f32("routed_scaling_factor").unwrap()
    };
    assert_eq!((scale("deepseek_v3"), scale("glm4_moe_lite"), scale("glm4_moe")), (2.5, 1.8, 1.0));
}

#[test]
fn rope_scaling_stands_in_place_of_rope_parameters() {
    let parameters = json!({"rope_type": "default", "rope_theta": 5.0, "beta_fast": 7.0});
    let root = |scaling: Value| {
        json!({"model_type": "qwen3_moe", "rope_parameters": parameters, "rope_scaling": scaling,
               "rope_theta": 9.0, "max_position_embeddings": 77})
    };
    let yarn = root(json!({"type": "yarn", "factor": 4.0}));
    assert_eq!(rope(yarn.clone(), "rope_type"), Some(json!("yarn")));
    assert_eq!(rope(yarn.clone(), "beta_fast"), None);
    assert_eq!(rope(yarn.clone(), "rope_theta"), Some(json!(9.0)));
    assert_eq!(rope(yarn, "original_max_position_embeddings"), Some(json!(77)));
    for empty in [json!({}), Value::Null] {
        assert_eq!(rope(root(empty), "rope_theta"), Some(json!(5.0)));
    }
    let message = "rope_scaling is \"yarn\"; it must be an object";
    check_refused(root(json!("yarn")), message);
}

#[test]
fn the_rotated_part_of_a_head_follows_the_family() {
    let part = |root: Value| rope(root, "partial_rotary_factor").unwrap();
    let of = |model_type: &str, key: &str, value: Value| {
        part(json!({"model_type": model_type, key: value, "head_dim": 32}))
    };
    let key = "partial_rotary_factor";
    assert_eq!(of("qwen3_moe", key, json!(0.5)), json!(1.0));
    assert_eq!(of("qwen3_next", key, json!(0.5)), json!(0.5));
    assert_eq!(of("qwen3_next", key, Value::Null), json!(1.0));
    assert_eq!(of("qwen3_next", "unused", Value::Null), json!(0.25));
    assert_eq!(of("minimax_m2", "rotary_dim", json!(8)), json!(0.25));
    let both = json!({"model_type": "minimax_m2", "rotary_dim": 8, key: 0.5});
    assert_eq!(part(both), json!(0.5));
    let yarn = json!({"rope_type": "yarn", "factor": 2.0});
    let stretched = json!({"model_type": "mixtral", "rope_scaling": yarn, key: 0.5});
    let message = "partial_rotary_factor is 0.5; it must be 1 with rope_type \"yarn\"";
    check_refused(stretched, message);
}

#[test]
fn names_of_one_key_must_agree() {
    let root = |more: Value| {
        let mut root = json!({"model_type": "mixtral", "num_local_experts": 8});
        root.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        root
    };
    assert_eq!(
        resolved(root(json!({"num_experts": 8}))).unwrap().usize("num_local_experts").unwrap(),
        8
    );
    let message = "num_local_experts is 8; it must equal num_experts, which is 4";
    check_refused(root(json!({"num_experts": 4})), message);
    let other = json!({"model_type": "qwen3_moe", "num_local_experts": 4});
    assert_eq!(resolved(other).unwrap().usize("num_experts").unwrap(), 4);
}

#[test]
fn a_nested_config_counts_alone_but_for_tied_embeddings() {
    let nested = |tied: Value| {
        json!({"model_type": "qwen3_5_moe", "rms_norm_eps": 0.5, "tie_word_embeddings": tied,
               "text_config": {"hidden_size": 7, "tie_word_embeddings": false}})
    };
    let config = resolved(nested(json!(true))).unwrap();
    assert_eq!(config.usize("hidden_size").unwrap(), 7);
    assert_eq!(config.f32("rms_norm_eps").unwrap(), 1e-6);
    assert!(config.bool("tie_word_embeddings").unwrap());
    assert!(!resolved(nested(Value::Null)).unwrap().bool("tie_word_embeddings").unwrap());
    let flat = json!({"model_type": "qwen3_moe", "text_config": {"hidden_size": 7}});
    assert_eq!(resolved(flat).unwrap().usize("hidden_size").unwrap(), 2048);
}

#[test]
fn the_language_model_of_any_other_model_is_nested() {
    let size = |root: Value| resolved(root).unwrap().usize("hidden_size").unwrap();
    for outer in ["kimi_k25", "kimi_vl"] {
        let text = json!({"model_type": "deepseek_v3", "hidden_size": 7});
        assert_eq!(size(json!({"model_type": outer, "text_config": text})), 7, "{outer}");
    }
    for outer in ["qwen3_vl_moe", "glm4v_moe"] {
        assert_eq!(size(json!({"model_type": outer, "text_config": {"hidden_size": 7}})), 7);
    }
    // A file of the language model alone, which has the type of the inner object.
    assert_eq!(size(json!({"model_type": "qwen3_vl_moe_text", "hidden_size": 7})), 7);
}

#[test]
fn what_the_reference_ignores_changes_nothing_or_is_refused() {
    let ignored = json!({"model_type": "minimax_m2", "routed_scaling_factor": 2.0, "n_group": 9});
    let config = resolved(ignored).unwrap();
    assert_eq!(config.f32("routed_scaling_factor").unwrap(), 1.0);
    assert_eq!(config.usize("n_group").unwrap(), 1);
    let message = "scoring_func is \"softmax\"; it must be \"sigmoid\"";
    check_refused(json!({"model_type": "minimax_m2", "scoring_func": "softmax"}), message);
    let message = "n_group is null; it must have a value, or be absent for 8";
    check_refused(json!({"model_type": "deepseek_v3", "n_group": null}), message);
}
