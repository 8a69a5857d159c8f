//! A bound on the nesting of what is rendered, since JSON values are copied and written
//! recursively.

use serde_json::Value;

use super::error::TextError;
use super::message::Message;
use super::render_request::RenderRequest;

/// Lists and objects in one another. A parser of JSON refuses 128, and a message and its calls add
/// some of their own.
const MAX_DEPTH: usize = 100;

/// Refuses a request that is nested too deeply.
///
/// # Errors
/// [`TextError::TooNested`].
pub(super) fn check(request: &RenderRequest<'_>) -> Result<(), TextError> {
    check_parts(request.messages, request.tools)?;
    let deep = request.extra.iter().find(|(_, value)| !is_shallow(value, MAX_DEPTH));
    deep.map_or(Ok(()), |(name, _)| Err(too_nested(format!("the variable {name}"))))
}

/// Refuses messages or definitions of tools that are nested too deeply.
///
/// # Errors
/// [`TextError::TooNested`].
pub(super) fn check_parts<'a>(
    messages: &[Message],
    tools: impl IntoIterator<Item = &'a Value>,
) -> Result<(), TextError> {
    let is_deep = |message: &Message| !fields(message).all(|value| is_shallow(value, MAX_DEPTH));
    if let Some(idx) = messages.iter().position(is_deep) {
        return Err(too_nested(format!("message {idx}")));
    }
    if tools.into_iter().all(|tool| is_shallow(tool, MAX_DEPTH)) {
        Ok(())
    } else {
        Err(too_nested(String::from("the definition of a tool")))
    }
}

fn too_nested(what: String) -> TextError {
    TextError::TooNested { what, max_depth: MAX_DEPTH }
}

fn fields(message: &Message) -> impl Iterator<Item = &Value> {
    let Message { role: _, content, reasoning_content, tool_calls, name, tool_call_id, extra } =
        message;
    let named = [content, reasoning_content, tool_calls, name, tool_call_id];
    named.into_iter().flatten().chain(extra.values())
}

/// Whether a value has at most `max_depth` levels of lists and objects.
fn is_shallow(value: &Value, max_depth: usize) -> bool {
    let below = max_depth.checked_sub(1);
    match value {
        Value::Array(items) => {
            below.is_some_and(|max| items.iter().all(|item| is_shallow(item, max)))
        }
        Value::Object(fields) => {
            below.is_some_and(|max| fields.values().all(|field| is_shallow(field, max)))
        }
        _ => true,
    }
}
