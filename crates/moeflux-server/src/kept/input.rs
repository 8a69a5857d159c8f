//! Items of a request as they are listed.

use serde_json::{Map, Value, json};

/// An item with the fields that all have: its type, its id, and content in parts. `id` is used where
/// the client gave none.
pub(super) fn described(mut item: Value, id: &str) -> Value {
    let Some(fields) = item.as_object_mut() else { return item };
    let missing =
        |fields: &Map<String, Value>, name: &str| fields.get(name).is_none_or(Value::is_null);
    if missing(fields, "id") {
        fields.insert(String::from("id"), id.into());
    }
    if missing(fields, "type") && fields.contains_key("role") {
        fields.insert(String::from("type"), "message".into());
    }
    if fields["id"] == id && fields.get("type").is_some_and(|kind| kind == "message") {
        fields.entry("status").or_insert_with(|| "completed".into());
    }
    if let Some(Value::String(text)) = fields.get("content") {
        let part = match fields.get("role").and_then(Value::as_str) {
            Some("assistant") => json!({"type": "output_text", "text": text, "annotations": []}),
            _ => json!({"type": "input_text", "text": text}),
        };
        fields.insert(String::from("content"), json!([part]));
    }
    item
}
