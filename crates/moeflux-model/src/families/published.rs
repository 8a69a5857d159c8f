//! Shapes of published models: their configs, as far as sizes and arithmetic go. Figures: the models'
//! own `config.json`, and the defaults of transformers' configuration classes that were made after them.

use serde_json::{Value, json};

/// The shape of a model.
#[derive(Clone, Copy, Debug)]
pub struct PublishedShape {
    /// The name by which it is asked for.
    pub name: &'static str,
    /// Makes its `config.json`.
    pub config: fn() -> Value,
}

/// `base` with the keys of `changes` set.
pub(super) fn with(mut base: Value, changes: Value) -> Value {
    if let (Some(base), Value::Object(changes)) = (base.as_object_mut(), changes) {
        base.extend(changes);
    }
    base
}

/// A language model inside a model that also sees.
pub(super) fn nested(model_type: &str, architecture: &str, text: Value) -> Value {
    json!({
        "architectures": [architecture],
        "model_type": model_type,
        "text_config": text,
        "tie_word_embeddings": false,
    })
}

/// A model with a vision tower of this config.
pub(super) fn seeing(model: Value, vision_config: Value) -> Value {
    with(model, json!({ "vision_config": vision_config }))
}

/// The tower of Qwen3-VL and later models, for a text of this width.
pub(super) fn qwen3_tower(hidden: usize) -> Value {
    json!({
        "depth": 27,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_heads": 16,
        "hidden_act": "gelu_pytorch_tanh",
        "in_channels": 3,
        "patch_size": 16,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "num_position_embeddings": 2304,
        "out_hidden_size": hidden,
        "deepstack_visual_indexes": [],
    })
}
