//! What tests of families share: building from configs of golden cases with keys replaced, and small
//! configs of latent attention.

use std::path::Path;

use moeflux_backend::ActivationPrecision;
use moeflux_core::checkpoint::Config;
use serde_json::{Map, Value, json};

use super::Family;
use crate::declared::Declared;
use crate::load::{LoadError, Survey};
use crate::model::{Build, Variant, WithMtp};
use crate::shape::ModelShape;

/// Builds from a golden case's config with one key replaced.
pub(super) fn build(case: &str, key: &str, value: &Value) -> Result<(), String> {
    build_variant(case, key, value, Variant::default())
}

pub(super) fn build_variant(
    case: &str,
    key: &str,
    value: &Value,
    variant: Variant,
) -> Result<(), String> {
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
pub(super) fn check_refused(case: &str, key: &str, value: Value, rule: &str) {
    let got = build(case, key, &value).expect_err("refused");
    let shown = if value.is_null() { "missing".to_owned() } else { value.to_string() };
    assert_eq!(got, format!("config.json: {key} is {shown}; it must {rule}"));
}

#[track_caller]
pub(super) fn check_taken(case: &str, key: &str, value: Value) {
    build(case, key, &value).unwrap();
}

/// What every latent-attention config has.
pub(super) fn latent_config(model_type: &str, more: &Value) -> Value {
    let mut root = json!({
        "model_type": model_type, "vocab_size": 50, "hidden_size": 32,
        "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 2,
        "q_lora_rank": 12,
        "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6,
        "intermediate_size": 20, "moe_intermediate_size": 10, "n_routed_experts": 8,
        "num_experts_per_tok": 2, "n_shared_experts": 1, "rope_theta": 10000,
        "n_group": 1, "topk_group": 1
    });
    root.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    root
}

pub(super) fn shape(root: Value) -> Result<ModelShape, LoadError> {
    let config = Config::from_value(Path::new("config.json"), root).expect("an object");
    Ok(Declared::of_config(&config, WithMtp::Never)?.shape)
}

#[track_caller]
pub(super) fn check_latent_refused(model_type: &str, more: Value, message: &str) {
    let got = shape(latent_config(model_type, &more)).expect_err("refused").to_string();
    assert_eq!(got, format!("config.json: {message}"));
}

/// The keys `more` in addition to those of the indexer.
pub(super) fn indexed(more: Value) -> Value {
    let mut all = Map::new();
    all.insert("index_head_dim".to_owned(), json!(8));
    all.insert("index_n_heads".to_owned(), json!(3));
    all.insert("index_topk".to_owned(), json!(5));
    all.extend(more.as_object().unwrap().clone());
    Value::Object(all)
}

/// Latents and rotated keys take 80 bytes a layer, index keys 32.
#[track_caller]
pub(super) fn check_indexers(model_type: &str, more: Value, n: usize) {
    let shape = shape(latent_config(model_type, &indexed(more))).unwrap();
    let bytes: usize = shape.caches.iter().map(|cache| cache.bytes_per_position()).sum();
    assert_eq!(bytes, 4 * 80 + n * 32);
}
