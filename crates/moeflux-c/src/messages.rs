//! Conversations as the OpenAI API has them.

use moeflux::{Infill, Message, NamedText};
use moeflux_core::json_problem;
use serde::Deserialize;
use serde_json::Value;

use crate::status::{Fault, MOEFLUX_ERROR_REQUEST};

/// Reads a JSON array of messages.
pub(crate) fn messages(json: &str) -> Result<Vec<Message>, Fault> {
    let parsed: Result<Vec<Message>, _> = serde_json::from_str(json);
    let mut messages = parsed.map_err(|err| {
        refused(&format!(
            "write a JSON array of objects with role and content ({})",
            json_problem(&err)
        ))
    })?;
    for (nth, message) in messages.iter_mut().enumerate() {
        if let Some(Value::Array(parts)) = &message.content {
            message.content = Some(Value::from(joined(parts, nth)?));
        }
        message.parse_arguments();
    }
    Ok(messages)
}

/// The text of a content that comes in parts.
fn joined(parts: &[Value], nth: usize) -> Result<String, Fault> {
    let text = |part: &Value| match part {
        Value::String(text) => Some(text.clone()),
        part if part["type"] == "text" => part["text"].as_str().map(str::to_owned),
        _ => None,
    };
    let texts: Option<Vec<String>> = parts.iter().map(text).collect();
    let texts = texts.ok_or_else(|| {
        refused(&format!("message {nth}: the content has a part that is no text; send texts only"))
    })?;
    Ok(texts.concat())
}

fn refused(reason: &str) -> Fault {
    Fault::option(MOEFLUX_ERROR_REQUEST, "messages", format!("messages: {reason}"))
}

/// A text with a gap, in JSON.
#[derive(Deserialize)]
struct Gap {
    prefix: String,
    suffix: String,
    #[serde(default)]
    others: Vec<Other>,
    #[serde(default)]
    n_answer: usize,
}

/// A text that helps to fill a gap.
#[derive(Deserialize)]
struct Other {
    name: String,
    text: String,
}

/// Reads a text with a gap.
pub(crate) fn infill(json: &str) -> Result<Infill, Fault> {
    let parsed: Result<Gap, _> = serde_json::from_str(json);
    let Gap { prefix, suffix, others, n_answer } = parsed.map_err(|err| {
        Fault::new(
            MOEFLUX_ERROR_REQUEST,
            format!("infill: write a JSON object with prefix and suffix ({})", json_problem(&err)),
        )
    })?;
    let others = others.into_iter().map(|Other { name, text }| NamedText { name, text }).collect();
    Ok(Infill { prefix, suffix, others, n_answer })
}
