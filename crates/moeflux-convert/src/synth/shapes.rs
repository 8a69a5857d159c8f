//! Shapes of real models, as their configs have them.

use std::path::Path;

use moeflux_core::checkpoint::Config;
use moeflux_model::{Declared, FAMILIES, Family, ModelShape, PublishedShape, WithMtp};
use serde_json::Value;

use super::options::SynthOptions;

/// The names of all shapes.
pub fn shape_names() -> impl Iterator<Item = &'static str> {
    shapes().map(|shape| shape.name)
}

/// All shapes, family by family.
fn shapes() -> impl Iterator<Item = &'static PublishedShape> {
    FAMILIES.iter().flat_map(|family| family.shapes)
}

/// The family of a shape, where there is such a shape.
pub fn shape_family(name: &str) -> Option<&'static str> {
    let has = |family: &&Family| family.shapes.iter().any(|shape| shape.name == name);
    FAMILIES.iter().find(has).map(|family| family.name)
}

/// The name of the shape that a model has, by its family and its figures; `None` where there is none.
pub fn shape_like(family: &str, shape: &ModelShape) -> Option<&'static str> {
    let figures = |shape: &ModelShape| {
        let layers = [shape.n_layers, shape.n_moe_layers];
        (layers, [shape.n_experts, shape.config_top_k], [shape.hidden, shape.vocab])
    };
    let is_like = |name: &&str| {
        let value = config(name, &SynthOptions::default());
        let config =
            value.and_then(|value| Config::from_value(Path::new("config.json"), value).ok());
        let declared = config.and_then(|config| Declared::of_config(&config, WithMtp::Never).ok());
        declared.is_some_and(|declared| {
            declared.family.name == family && figures(&declared.shape) == figures(shape)
        })
    };
    shape_names().find(is_like)
}

/// The `config.json` of a shape.
pub(super) fn config(name: &str, options: &SynthOptions) -> Option<Value> {
    let SynthOptions { n_layers, table_rows, has_vision, .. } = *options;
    let mut config = (shapes().find(|shape| shape.name == name)?.config)();
    if let Some(keys) = config.as_object_mut().filter(|_| !has_vision) {
        keys.remove("vision_config");
    }
    let is_nested = config.get("text_config").is_some();
    let text = if is_nested { &mut config["text_config"] } else { &mut config };
    if let Some(n_layers) = n_layers {
        text["num_hidden_layers"] = n_layers.into();
        // Listed types repeat after a whole period.
        if let Some(types) = text.get_mut("layer_types").and_then(Value::as_array_mut) {
            *types = types.iter().cycle().take(n_layers).cloned().collect();
        }
        // One a layer, and those behind them.
        if let Some(ratios) = text.get_mut("compress_ratios").and_then(Value::as_array_mut) {
            let last = ratios.last().cloned();
            *ratios = ratios.iter().cycle().take(n_layers).cloned().chain(last).collect();
        }
        // One letter a layer.
        if let Some(Value::String(pattern)) = text.get_mut("hybrid_override_pattern") {
            *pattern = pattern.chars().cycle().take(n_layers).collect();
        }
        // Counted from one.
        if let Some(ids) = text.get_mut("ple_layer_ids").and_then(Value::as_array_mut) {
            ids.retain(|id| id.as_u64() <= Some(n_layers as u64));
        }
    }
    if let Some(rows) = table_rows
        && let Some(base) = text.get_mut("ngram_vocab_size_base")
    {
        *base = rows.into();
    }
    Some(config)
}
