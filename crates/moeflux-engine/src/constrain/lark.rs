//! What an answer may look like, as a grammar in the Lark notation.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use crate::text::{Calls, JsonCalls, OutputFormat, TaggedCalls, Thinking, Tokenizer, is_string};

/// What an answer may look like, thinking left aside.
#[derive(Clone, Debug, PartialEq)]
pub enum AnswerShape {
    /// Text.
    Text,
    /// JSON that a schema describes.
    Json(Value),
}

/// What an answer may look like.
#[derive(Clone, Debug)]
pub struct Grammar {
    /// How the model writes what is not text.
    pub format: OutputFormat,
    /// Whether the prompt ends with thinking that has begun.
    pub is_thinking: bool,
    /// What it says.
    pub shape: AnswerShape,
    /// Tools that it may call, as clients give them.
    pub tools: Vec<Value>,
    /// Whether it must call one.
    pub must_call: bool,
    /// Whether it may call several.
    pub may_call_many: bool,
}

/// Rules so far.
struct Rules<'a> {
    tokenizer: &'a Tokenizer,
    text: String,
    n: usize,
}

impl Grammar {
    pub(super) fn to_lark(&self, tokenizer: &Tokenizer) -> String {
        let mut rules = Rules { tokenizer, text: String::new(), n: 0 };
        let calls = match (self.tools.is_empty(), self.format.tools) {
            (false, Some(syntax)) => Some(syntax.calls()),
            _ => None,
        };
        let calls = calls.map(|it| rules.calls(it, &self.tools, self.may_call_many));
        let said = match (&self.shape, &calls) {
            _ if self.must_call => None,
            (AnswerShape::Text, _) => Some(String::from("TEXT?")),
            (AnswerShape::Json(schema), _) => Some(rules.json(schema)),
        };
        let start = match self.format.thinking {
            Thinking::Channels => rules.channels(said, calls),
            thinking => {
                let thought = match thinking {
                    Thinking::Tags if self.is_thinking => {
                        format!("TEXT? {} ", rules.literal("</think>"))
                    }
                    Thinking::Tags => {
                        let [open, close] = ["<think>", "</think>"].map(|it| rules.literal(it));
                        format!("({open} TEXT? {close})? ")
                    }
                    _ => String::new(),
                };
                let space = if thought.is_empty() { "" } else { "SPACE? " };
                match (said, calls) {
                    (Some(said), Some(calls)) if self.shape == AnswerShape::Text => {
                        format!("{thought}{said} ({calls})?")
                    }
                    (Some(said), Some(calls)) => format!("{thought}{space}({said} | {calls})"),
                    (Some(said), None) if self.shape == AnswerShape::Text => {
                        format!("{thought}{said}")
                    }
                    (Some(said), None) => format!("{thought}{space}{said}"),
                    (None, Some(calls)) => format!("{thought}{space}{calls}"),
                    (None, None) => format!("{thought}TEXT?"),
                }
            }
        };
        let text = rules.text;
        format!("start: {start}\nTEXT: /(.|\\n)+/\nSPACE: /[ \\n]{{1,2}}/\n{text}")
    }
}

impl Rules<'_> {
    /// Adds a rule and gives its name.
    fn rule(&mut self, body: &str) -> String {
        self.named("r", "", body)
    }

    fn named(&mut self, prefix: &str, attributes: &str, body: &str) -> String {
        self.n += 1;
        let name = format!("{prefix}{}", self.n);
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "{name}{attributes}: {body}");
        name
    }

    /// Text whose control tokens are tokens.
    fn literal(&self, text: &str) -> String {
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            if let Some((token, id)) = self.control_at(rest) {
                parts.extend(quoted(&plain));
                plain.clear();
                parts.push(format!("<[{id}]>"));
                rest = &rest[token.len()..];
            } else {
                plain.push(c);
                rest = &rest[c.len_utf8()..];
            }
        }
        parts.extend(quoted(&plain));
        parts.join(" ")
    }

    /// The control token that a text begins with.
    fn control_at<'t>(&self, text: &'t str) -> Option<(&'t str, u32)> {
        if !text.starts_with('<') {
            return None;
        }
        let ends = text.match_indices('>').map(|(at, _)| &text[..=at]);
        let mut known = ends.filter_map(|it| {
            let id = self.tokenizer.id_of(it).filter(|id| self.tokenizer.is_control(*id))?;
            Some((it, id.0))
        });
        known.next()
    }

    /// JSON as a schema has it, written the way templates write JSON.
    fn json(&mut self, schema: &Value) -> String {
        let mut schema = match schema {
            Value::Object(fields) => fields.clone(),
            Value::Bool(false) => Map::from_iter([(String::from("not"), json!({}))]),
            _ => Map::new(),
        };
        bound_integers(&mut schema);
        let style = json!({
            "item_separator": ", ", "key_separator": ": ", "whitespace_flexible": false,
        });
        let own = schema.get("x-guidance").and_then(Value::as_object);
        let is_lenient = own.is_some_and(|it| it.get("lenient") == Some(&Value::Bool(true)));
        let mut options = style;
        options["lenient"] = Value::from(is_lenient);
        schema.insert(String::from("x-guidance"), options);
        self.rule(&format!("%json {}", Value::Object(schema)))
    }

    /// One or several calls.
    fn calls(&mut self, calls: Calls, tools: &[Value], many: bool) -> String {
        let bodies: Vec<String> =
            tools.iter().map(|it| self.call(calls, &it["function"])).collect();
        let call = self.rule(&bodies.join(" | "));
        let (section, between) = match calls {
            Calls::Json(JsonCalls { section, between, .. }) => (section, between),
            Calls::Tagged(TaggedCalls { between, .. }) => (None, between),
        };
        let more = match many {
            true if between.is_empty() => format!("({call})*"),
            true => format!("({} {call})*", self.literal(between)),
            false => String::new(),
        };
        let body = match section {
            Some([open, close]) => {
                format!("{} {call} {more} {}", self.literal(open), self.literal(close))
            }
            None => format!("{call} {more}"),
        };
        self.rule(&body)
    }

    fn call(&mut self, calls: Calls, function: &Value) -> String {
        let name = function["name"].as_str().unwrap_or_default();
        let schema = &function["parameters"];
        match calls {
            Calls::Json(it) => {
                let before = self.literal(&format!("{}{}{name}", it.open, it.before_name));
                let (name_end, number) = match it.after_name.split_once('#') {
                    // Kimi numbers its calls.
                    Some((before, after)) => {
                        (format!("{} /[0-9]{{1,3}}/", self.literal(before)), after)
                    }
                    None => (String::new(), it.after_name),
                };
                let after_name = self.literal(number);
                let arguments = self.json(&object(schema));
                let end = self.literal(&format!("{}{}", it.after_arguments, it.close));
                // What closes a harmony call ends the answer.
                let end = match it.close {
                    "<|call|>" => String::new(),
                    _ => end,
                };
                self.rule(&format!("{before} {name_end} {after_name} {arguments} {end}"))
            }
            Calls::Tagged(it) => {
                let before =
                    self.literal(&format!("{}{}{name}{}", it.open, it.before_name, it.after_name));
                let mut body = before;
                let required = schema["required"].as_array().cloned().unwrap_or_default();
                for (key, property) in schema["properties"].as_object().into_iter().flatten() {
                    let argument = self.argument(it, schema, key, property);
                    let optional = if required.contains(&json!(key)) { "" } else { "?" };
                    let _ = write!(body, " {argument}{optional}");
                }
                let end = self.literal(&format!("{}{}", it.end, it.close));
                self.rule(&format!("{body} {end}"))
            }
        }
    }

    fn argument(
        &mut self,
        calls: TaggedCalls,
        schema: &Value,
        key: &str,
        property: &Value,
    ) -> String {
        let before = self.literal(&format!("{}{key}{}", calls.key, calls.value));
        let end = self.literal(calls.value_end);
        let choices = property["enum"].as_array().filter(|_| is_string(schema, key));
        let value = match choices {
            Some(choices) => {
                let choices = choices.iter().filter_map(Value::as_str);
                let choices: Vec<String> = choices.flat_map(quoted).collect();
                format!("({}) {end}", choices.join(" | "))
            }
            None if is_string(schema, key) => self.text_until(calls.value_end, &end),
            None => {
                let mut property = property.clone();
                for defs in ["$defs", "definitions"] {
                    if let (Some(inner), Some(all)) = (property.as_object_mut(), schema.get(defs)) {
                        inner.entry(defs).or_insert_with(|| all.clone());
                    }
                }
                format!("{} {end}", self.json(&lenient(&property)))
            }
        };
        self.rule(&format!("{before} {value}"))
    }

    /// Any text and then a marker.
    fn text_until(&mut self, marker: &str, literal: &str) -> String {
        if self.control_at(marker).is_some() {
            return format!("TEXT? {literal}");
        }
        let escaped: String = marker.chars().map(regex_char).collect();
        self.named("v", "[lazy]", &format!("/(.|\\n)*{escaped}/"))
    }

    /// An answer in the channels of the harmony format.
    fn channels(&mut self, said: Option<String>, calls: Option<String>) -> String {
        let message = self.literal("<|message|>");
        let channel = self.literal("<|channel|>");
        let next = self.literal("<|end|><|start|>assistant");
        let aside =
            self.rule(&format!("{channel} (\"analysis\" | \"commentary\") {message} TEXT? {next}"));
        let said = said.map(|it| format!("{channel} \"final\" {message} {it}"));
        let last: Vec<String> = [said, calls].into_iter().flatten().collect();
        format!("{aside}* ({})", last.join(" | "))
    }
}

/// The largest magnitude that every reader of JSON takes: 2^53 - 1.
const LARGEST_INTEGER: i64 = (1 << 53) - 1;

/// What bounds an integer already.
const BOUNDS: [&str; 7] =
    ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "enum", "const", "multipleOf"];

/// Keeps whole numbers without bounds from going on for ever.
fn bound_integers(schema: &mut Map<String, Value>) {
    let is_integer = schema.get("type").is_some_and(|it| it == "integer");
    if is_integer && !BOUNDS.iter().any(|it| schema.contains_key(*it)) {
        schema.insert(String::from("minimum"), Value::from(-LARGEST_INTEGER));
        schema.insert(String::from("maximum"), Value::from(LARGEST_INTEGER));
    }
    for (key, value) in schema {
        let inner: Vec<&mut Value> = match (key.as_str(), value) {
            ("properties" | "patternProperties" | "$defs" | "definitions", Value::Object(all)) => {
                all.values_mut().collect()
            }
            ("anyOf" | "oneOf" | "allOf" | "prefixItems", Value::Array(all)) => {
                all.iter_mut().collect()
            }
            ("items" | "additionalProperties" | "additionalItems", one) => vec![one],
            _ => Vec::new(),
        };
        inner.into_iter().filter_map(Value::as_object_mut).for_each(bound_integers);
    }
}

/// A schema of arguments describes an object, whatever it leaves out.
fn object(schema: &Value) -> Value {
    let mut schema = lenient(schema);
    if let Some(fields) = schema.as_object_mut() {
        fields.entry("type").or_insert_with(|| Value::from("object"));
    }
    schema
}

/// Tools were written for models, not for grammars: what a grammar cannot
/// enforce is left to the model.
fn lenient(schema: &Value) -> Value {
    let mut schema = if schema.is_object() { schema.clone() } else { json!({}) };
    schema["x-guidance"] = json!({"lenient": true});
    schema
}

/// A string of the Lark notation; nothing for no text.
fn quoted(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| Value::from(text).to_string())
}

fn regex_char(c: char) -> String {
    match c {
        '\n' => String::from("\\n"),
        // Angle brackets behind a backslash are word boundaries.
        c if "\\.+*?()|[]{}^$/".contains(c) => format!("\\{c}"),
        c => c.to_string(),
    }
}
