//! A request that cannot be read, in words for the client.

use crate::error::ApiError;

/// The refusal of what stands at `start` in a body, of which the part at `path` is wrong.
pub(super) fn refusal(start: &str, path: &str, err: &serde_json::Error) -> ApiError {
    let text = err.to_string();
    // A parsed value has no lines; a text has.
    let place = format!(" at line {} column {}", err.line(), err.column());
    let message = text.strip_suffix(&place).unwrap_or(&text);
    let at = match path {
        "" => start.to_owned(),
        path if path.starts_with('[') => format!("{start}{path}"),
        path => join(start, path),
    };
    if let Some(field) = quoted(message, "missing field ") {
        return ApiError::field(join(&at, field), "it is missing");
    }
    if let Some(field) = quoted(message, "duplicate field ") {
        return ApiError::field(join(&at, field), "it is there twice");
    }
    let at = if at.is_empty() { String::from("body") } else { at };
    ApiError::field(at, problem(message))
}

/// The name in a message such as "missing field `model`".
fn quoted<'a>(message: &'a str, start: &str) -> Option<&'a str> {
    message.strip_prefix(start)?.strip_prefix('`')?.strip_suffix('`')
}

fn join(path: &str, field: &str) -> String {
    if path.is_empty() { field.to_owned() } else { format!("{path}.{field}") }
}

/// The rest of a sentence that begins with the name of a field.
fn problem(message: &str) -> String {
    if message.starts_with("invalid type: null,") {
        return String::from("it is missing");
    }
    if let Some((_, choices)) = message
        .strip_prefix("unknown variant ")
        .and_then(|rest| rest.rsplit_once(", expected one of ").or(rest.rsplit_once(", expected ")))
    {
        return format!("choose {}", choices.replace('`', ""));
    }
    let rest = ["invalid type: ", "invalid value: ", "invalid length "]
        .iter()
        .find_map(|start| message.strip_prefix(start));
    match rest.and_then(|rest| rest.rsplit_once(", expected ")) {
        Some((_, expected)) => format!("it must be {}", kind(expected)),
        None => message.to_owned(),
    }
}

/// A type as JSON calls it.
fn kind(expected: &str) -> &str {
    match expected {
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" => "an object",
        other => other,
    }
}
