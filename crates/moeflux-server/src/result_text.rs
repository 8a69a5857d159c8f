//! The text of what tools give, in whatever shape their clients send it.

use serde_json::{Value, json};

use crate::error::ApiResult;
use crate::messages::{Said, left_out};
use crate::pictures::{PictureFields, Pictures};

/// The text of what a tool gave: text, blocks, or an object.
pub(crate) fn result_text(content: Option<&Value>) -> String {
    let mut text = String::new();
    if let Some(content) = content {
        add_value(&mut text, content);
    }
    text
}

/// What a tool gave as templates read it: its text, or parts where it has pictures that the model sees.
///
/// # Errors
/// Where a picture cannot be read.
pub(crate) fn result_content(
    content: Option<Value>,
    at: &str,
    pictures: &mut Pictures,
) -> ApiResult<Value> {
    let parts = match content {
        Some(Value::Array(parts)) if pictures.sees() => parts,
        content => return Ok(Value::from(result_text(content.as_ref()))),
    };
    let mut said = Said::default();
    let mut text = String::new();
    for (i, mut part) in parts.into_iter().enumerate() {
        match PictureFields::of(&mut part) {
            Some(fields) => {
                pictures.add(fields, &format!("{at}[{i}]"))?;
                said.add_text(&std::mem::take(&mut text));
                said.add_picture();
            }
            None => add_value(&mut text, &part),
        }
    }
    said.add_text(&text);
    Ok(said.into_content())
}

/// Puts a text in front of what a tool gave.
pub(crate) fn with_prefix(prefix: &str, content: Value) -> Value {
    match content {
        Value::String(text) => Value::from(format!("{prefix}{text}")),
        Value::Array(mut parts) => {
            parts.insert(0, json!({"type": "text", "text": prefix}));
            Value::from(parts)
        }
        other => other,
    }
}

/// Fields of a result whose text is read, in this order.
const TEXT_FIELDS: [&str; 12] = [
    "title",
    "url",
    "source",
    "text",
    "tool_name",
    "stdout",
    "stderr",
    "error_code",
    "error_message",
    "data",
    "content",
    "tool_references",
];

/// Adds the text of a value, on a line of its own.
pub(crate) fn add_value(text: &mut String, value: &Value) {
    match value {
        Value::String(part) => add_line(text, part),
        Value::Array(items) => items.iter().for_each(|item| add_value(text, item)),
        Value::Object(fields) => {
            let kind = value["type"].as_str().unwrap_or_default();
            // Their data is in base64.
            let is_media = matches!(kind, "image" | "base64" | "file" | "url")
                || kind == "document"
                    && !matches!(value["source"]["type"].as_str(), Some("text" | "content"));
            let before = text.len();
            if !is_media {
                TEXT_FIELDS.iter().filter_map(|name| fields.get(*name)).for_each(|field| {
                    add_value(text, field);
                });
            }
            if text.len() == before && !kind.is_empty() && kind != "text" {
                add_line(text, &left_out(kind));
            }
        }
        _ => {}
    }
}

/// Adds text on a line of its own.
pub(crate) fn add_line(text: &mut String, part: &str) {
    if part.is_empty() {
        return;
    }
    if !text.is_empty() && !text.ends_with(char::is_whitespace) {
        text.push('\n');
    }
    text.push_str(part);
}
