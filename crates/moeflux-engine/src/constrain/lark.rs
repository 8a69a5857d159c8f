//! What an answer may look like, as a grammar in the Lark notation.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use crate::text::{Calls, DSML, OutputFormat, TaggedCalls, Thinking, Tokenizer, is_string};

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

/// The calls of tools, as rules.
struct CallRules {
    /// All of it.
    whole: String,
    /// Text and then that, where calls begin with text in front of a token.
    behind_text: Option<String>,
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
        let is_text = self.shape == AnswerShape::Text;
        let start = match self.format.thinking {
            Thinking::Channels => rules.channels(said, calls.map(|it| it.whole)),
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
                    (Some(said), Some(calls)) if is_text => match calls.behind_text {
                        Some(behind_text) => format!("{thought}({said} | {behind_text})"),
                        None => format!("{thought}{said} ({})?", calls.whole),
                    },
                    (Some(said), Some(calls)) => {
                        format!("{thought}{space}({said} | {})", calls.whole)
                    }
                    (Some(said), None) if is_text => format!("{thought}{said}"),
                    (Some(said), None) => format!("{thought}{space}{said}"),
                    (None, Some(calls)) => format!("{thought}{space}{}", calls.whole),
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
        let inner = text.starts_with(DSML).then(|| &text[..DSML.len()]);
        let ends = text.match_indices('>').filter(|_| text.starts_with('<'));
        let mut known =
            inner.into_iter().chain(ends.map(|(at, _)| &text[..=at])).filter_map(|it| {
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

    /// Text in front of the first control token, and the rest; `None` where
    /// there is no such token or no such text.
    fn split_at_control<'t>(&self, text: &'t str) -> Option<(&'t str, &'t str)> {
        let mut places = text.char_indices().map(|(at, _)| at);
        let at = places.find(|at| self.control_at(&text[*at..]).is_some())?;
        (at > 0).then(|| text.split_at(at))
    }

    /// One or several calls.
    fn calls(&mut self, calls: Calls, tools: &[Value], many: bool) -> CallRules {
        let bodies: Vec<String> =
            tools.iter().map(|it| self.call(calls, &it["function"])).collect();
        let call = self.rule(&bodies.join(" | "));
        let between = calls.between();
        let more = match many {
            true if between.is_empty() => format!("({call})*"),
            true => format!("({} {call})*", self.literal(between)),
            false => String::new(),
        };
        let Some([open, close]) = calls.section() else {
            let whole = self.rule(&format!("{call} {more}"));
            return CallRules { whole, behind_text: None };
        };
        let close = self.literal(close);
        let whole = format!("{} {call} {more} {close}", self.literal(open));
        let whole = self.rule(&whole);
        // Text would take what stands before the token, too.
        let behind_text = self.split_at_control(open).map(|(before, rest)| {
            let rest = self.literal(rest);
            let before = self.text_ending(before, "");
            self.rule(&format!("{before} {rest} {call} {more} {close}"))
        });
        CallRules { whole, behind_text }
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
                // Where lines stand between arguments, none may be an empty one.
                let blank = if it.json_value.is_some() { " \"\\n\"?" } else { "" };
                self.rule(&format!("{body}{blank} {end}"))
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
        match choices {
            Some(choices) => {
                let choices = choices.iter().filter_map(Value::as_str);
                let choices: Vec<String> = choices.flat_map(quoted).collect();
                self.rule(&format!("{before} ({}) {end}", choices.join(" | ")))
            }
            None if is_string(schema, key) => {
                let text = self.text_until(calls.value_end, &end);
                self.rule(&format!("{before} {text}"))
            }
            None => {
                let json = self.json(&lenient(&with_definitions(property, schema)));
                let Some(json_value) = calls.json_value else {
                    return self.rule(&format!("{before} {json} {end}"));
                };
                let named = self.literal(&format!("{}{key}{json_value}", calls.key));
                let mut forms = format!("{named} {json} {end}");
                if may_be_string(property) {
                    let text = self.text_until(calls.value_end, &end);
                    let _ = write!(forms, " | {before} {text}");
                }
                self.rule(&forms)
            }
        }
    }

    /// Any text and then a marker.
    fn text_until(&mut self, marker: &str, literal: &str) -> String {
        if self.control_at(marker).is_some() {
            return format!("TEXT? {literal}");
        }
        if let Some((before, rest)) = self.split_at_control(marker) {
            return format!("{} {}", self.text_ending(before, ""), self.literal(rest));
        }
        self.text_ending(marker, "[lazy]")
    }

    /// Any text that ends so.
    fn text_ending(&mut self, end: &str, attributes: &str) -> String {
        let escaped: String = end.chars().map(regex_char).collect();
        self.named("v", attributes, &format!("/(.|\\n)*{escaped}/"))
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

/// Whether a schema leaves room for text.
fn may_be_string(schema: &Value) -> bool {
    match &schema["type"] {
        Value::Array(types) => types.iter().any(|it| it == "string"),
        Value::Null => !["enum", "const", "$ref"].iter().any(|it| schema.get(it).is_some()),
        _ => false,
    }
}

/// A schema with the definitions of the one that it is a part of.
fn with_definitions(part: &Value, whole: &Value) -> Value {
    let mut part = part.clone();
    for defs in ["$defs", "definitions"] {
        if let (Some(inner), Some(all)) = (part.as_object_mut(), whole.get(defs)) {
            inner.entry(defs).or_insert_with(|| all.clone());
        }
    }
    part
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
