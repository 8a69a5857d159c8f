//! The arguments of a call on their way to JSON text.

use std::sync::{Arc, OnceLock};

use serde_json::Value;

use super::parameters::{Kind, Parameters};
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

/// The schema of a tool's arguments.
#[derive(Debug, Default)]
pub(super) struct ToolSchema {
    schema: Value,
    /// What it says, read with the first argument of the first call.
    parameters: OnceLock<Parameters>,
}

impl ToolSchema {
    pub(super) fn new(schema: Value) -> ToolSchema {
        ToolSchema { schema, parameters: OnceLock::new() }
    }

    fn kind_of(&self, key: &str) -> Kind {
        let parameters = self.parameters.get_or_init(|| Parameters::of(&self.schema));
        Kind::of(parameters.get(key).unwrap_or(&Value::Null), &self.schema)
    }
}

/// Writes arguments that come one by one as one JSON object.
#[derive(Clone, Debug)]
pub(super) struct TaggedWriter {
    schema: Arc<ToolSchema>,
    n_written: usize,
    /// Whether the argument that has begun is text.
    is_string: bool,
    /// What its schema says of it, where the model does not.
    kind: Option<Kind>,
    /// What has come of a value that is no string.
    raw: String,
}

impl TaggedWriter {
    pub(super) fn new(schema: Arc<ToolSchema>) -> TaggedWriter {
        TaggedWriter { schema, n_written: 0, is_string: false, kind: None, raw: String::new() }
    }

    /// Begins an argument. Whether it is text the model may have said; else
    /// the schema does.
    pub(super) fn key(&mut self, key: &str, says_string: Option<bool>) -> String {
        let kind = self.schema.kind_of(key);
        self.is_string = says_string.unwrap_or(kind.is_text());
        self.kind = says_string.is_none().then_some(kind);
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
        let text = self.raw.trim();
        let json = json_constant(text);
        let is_text = self.kind.as_ref().is_some_and(|kind| kind.text);
        let fits =
            |value: &Value| !is_text || self.kind.as_ref().is_some_and(|kind| kind.allows(value));
        match serde_json::from_str::<Value>(json).ok().filter(fits) {
            Some(value) => value.to_string(),
            None if is_text => Value::from(self.raw.as_str()).to_string(),
            None => Value::from(text).to_string(),
        }
    }

    /// Ends the arguments.
    pub(super) fn end(&self) -> &'static str {
        if self.n_written > 0 { "}" } else { "{}" }
    }
}

/// A constant as JSON writes it: some templates show them to their models as Python writes them.
pub(super) fn json_constant(text: &str) -> &str {
    match text {
        "True" => "true",
        "False" => "false",
        "None" => "null",
        other => other,
    }
}

/// The inside of a JSON string.
pub(super) fn escaped(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}
