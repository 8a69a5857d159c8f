//! Values that schemas list, and how long they are.

use serde_json::Value;

use super::numbers::is_exact;

/// Texts of more bytes are long, as are lists and objects.
const MAX_SHORT_TEXT: usize = 1024;

/// Bytes of a text, or of all texts of a list.
pub(super) fn bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(bytes).sum(),
        _ => 0,
    }
}

/// Bytes of a value as JSON; 0 for a short text and for what is neither text, list nor object.
pub(super) fn long_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) if text.len() > MAX_SHORT_TEXT => text.len(),
        Value::Array(_) | Value::Object(_) => value.to_string().len(),
        _ => 0,
    }
}

/// A number in a value that the library would write as another one.
pub(super) fn inexact(value: &Value) -> Option<String> {
    let mut todo = vec![value];
    while let Some(value) = todo.pop() {
        match value {
            Value::Number(number) if !is_exact(number) => return Some(number.to_string()),
            Value::Array(items) => todo.extend(items),
            Value::Object(fields) => todo.extend(fields.values()),
            _ => {}
        }
    }
    None
}

/// A whole number that is not negative, written as any number.
pub(super) fn whole(value: &Value) -> Option<u64> {
    let as_float = || value.as_f64().filter(|n| n.fract() == 0.0 && (0.0..1e15).contains(n));
    value.as_u64().or_else(|| as_float().map(|n| n as u64))
}

pub(super) fn size(value: &Value) -> usize {
    match value {
        Value::Object(fields) => fields.len(),
        Value::Array(items) => items.len(),
        _ => usize::from(!value.is_null()),
    }
}
