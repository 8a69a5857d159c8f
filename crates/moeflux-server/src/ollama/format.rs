//! `format`: what an answer must look like.

use moeflux_text::AnswerShape;
use serde_json::{Map, Value, json};

use crate::conversation::Names;
use crate::error::{ApiError, ApiResult};
use crate::request::StringOr;

/// `json`, or a JSON schema.
pub(super) type Format = StringOr<Map<String, Value>>;

/// What Ollama calls the fields that refusals name.
pub(super) const NAMES: Names = Names { shape: "format", thinking: "think" };

/// What `format` asks for.
pub(super) fn shape(format: Option<Format>) -> ApiResult<AnswerShape> {
    match format {
        None => Ok(AnswerShape::Text),
        Some(StringOr::Other(schema)) => Ok(AnswerShape::Json(Value::Object(schema))),
        Some(StringOr::String(text)) => match text.as_str() {
            "" => Ok(AnswerShape::Text),
            "json" => Ok(AnswerShape::Json(json!({"type": "object"}))),
            _ => Err(ApiError::field("format", "choose json, or give a JSON schema")),
        },
    }
}
