//! What configs are put together from.

use serde_json::{Value, json};

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
