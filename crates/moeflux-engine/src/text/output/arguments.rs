//! The arguments of a call on their way to JSON text.

use serde_json::Value;

use super::scan::Pending;

/// Follows one JSON value to its end.
#[derive(Clone, Debug, Default)]
pub(super) struct JsonSpan {
    depth: usize,
    in_string: bool,
    is_escaped: bool,
    is_begun: bool,
}

impl JsonSpan {
    /// Takes as much of an object or a list as is there; whether it has ended.
    pub(super) fn take(&mut self, pending: &mut Pending) -> (String, bool) {
        let mut text = String::new();
        while let Some(c) = pending.next_char() {
            if !self.is_begun && c.is_whitespace() {
                continue;
            }
            self.is_begun = true;
            text.push(c);
            match c {
                _ if self.is_escaped => self.is_escaped = false,
                '\\' if self.in_string => self.is_escaped = true,
                '"' => self.in_string = !self.in_string,
                '{' | '[' if !self.in_string => self.depth += 1,
                '}' | ']' if !self.in_string => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
            if self.depth == 0 && !self.in_string {
                return (text, true);
            }
        }
        (text, false)
    }
}

/// Writes arguments that come one by one as one JSON object.
#[derive(Clone, Debug)]
pub(super) struct TaggedWriter {
    /// The tool's JSON schema.
    schema: Value,
    n_written: usize,
    /// Whether the argument that has begun is text.
    is_string: bool,
    /// What has come of a value that is no string.
    raw: String,
}

impl TaggedWriter {
    pub(super) fn new(schema: Value) -> TaggedWriter {
        TaggedWriter { schema, n_written: 0, is_string: false, raw: String::new() }
    }

    /// Begins an argument. Whether it is text the model may have said; else
    /// the schema does.
    pub(super) fn key(&mut self, key: &str, says_string: Option<bool>) -> String {
        self.is_string = says_string.unwrap_or_else(|| is_string(&self.schema, key));
        self.raw.clear();
        let comma = if self.n_written > 0 { ", " } else { "{" };
        self.n_written += 1;
        let quote = if self.is_string { "\"" } else { "" };
        format!("{comma}{}: {quote}", Value::from(key))
    }

    /// Takes text of its value.
    pub(super) fn value(&mut self, text: &str) -> String {
        if self.is_string {
            return escaped(text);
        }
        self.raw.push_str(text);
        String::new()
    }

    /// Ends its value.
    pub(super) fn end_value(&mut self) -> String {
        if self.is_string {
            return String::from("\"");
        }
        match serde_json::from_str::<Value>(&self.raw) {
            Ok(value) => value.to_string(),
            Err(_) => Value::from(self.raw.trim()).to_string(),
        }
    }

    /// Ends the arguments.
    pub(super) fn end(&self) -> &'static str {
        if self.n_written > 0 { "}" } else { "{}" }
    }
}

/// Whether an argument is text by its schema.
pub(crate) fn is_string(schema: &Value, key: &str) -> bool {
    let property = &schema["properties"][key];
    property["type"] == "string"
        || property["enum"].as_array().is_some_and(|it| it.iter().all(Value::is_string))
        || property["const"].is_string()
}

/// The inside of a JSON string.
fn escaped(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}
