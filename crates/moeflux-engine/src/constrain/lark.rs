//! What an answer may look like, as a grammar in the Lark notation.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use crate::text::{Calls, DSML, Kind, OutputFormat, Parameters, TaggedCalls, Thinking, Tokenizer};

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
        format!("start: {start}\nTEXT: /(.|\\n)+/\nSPACE: /[ \\n]{{1,2}}/\nNL: /\\n/\n{text}")
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
        // Templates write the arguments of calls with spaces or without.
        let is_call = schema.get("x-guidance").is_some();
        let [item, key] = if is_call { [", ?", ": ?"] } else { [", ", ": "] };
        let style = json!({
            "item_separator": item, "key_separator": key, "whitespace_flexible": false,
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
            true if matches!(calls, Calls::Tagged(_)) => format!("(NL? NL? {call})*"),
            true if between.is_empty() => format!("({call})*"),
            true => format!("({} {call})*", self.literal(between)),
            false => String::new(),
        };
        let loose = |rules: &Self, text: &str| match calls {
            Calls::Tagged(_) => rules.loose(text),
            Calls::Json(_) => rules.literal(text),
        };
        let Some([open, close]) = calls.section() else {
            let whole = self.rule(&format!("{call} {more}"));
            return CallRules { whole, behind_text: None };
        };
        let close = self.literal(close);
        let whole = format!("{} {call} {more} {close}", loose(self, open));
        let whole = self.rule(&whole);
        // Text would take what stands before the token, too.
        let behind_text = self.split_at_control(open).map(|(before, rest)| {
            let rest = loose(self, rest);
            let before = self.text_ending(before, "");
            self.rule(&format!("{before} {rest} {call} {more} {close}"))
        });
        CallRules { whole, behind_text }
    }

    fn call(&mut self, calls: Calls, function: &Value) -> String {
        let name = function["name"].as_str().unwrap_or_default();
        let schema = &function["parameters"];
        match calls {
            Calls::Json(it) if it.close == "<|call|>" => self.harmony_call(name, schema),
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
                self.rule(&format!("{before} {name_end} {after_name} {arguments} {end}"))
            }
            Calls::Tagged(it) => {
                let before =
                    self.loose(&format!("{}{}{name}{}", it.open, it.before_name, it.after_name));
                let end = self.loose(&format!("{}{}", it.end, it.close));
                let arguments = self.tagged_arguments(it, schema);
                // DeepSeek-V3.2 leaves an empty line where there are no arguments.
                self.rule(&format!("{before} {arguments} NL? {end}"))
            }
        }
    }

    /// A call in the harmony format, whose recipient stands before or after the channel. What
    /// closes it ends the answer.
    fn harmony_call(&mut self, name: &str, schema: &Value) -> String {
        let [channel, constrain, message] =
            ["<|channel|>", "<|constrain|>", "<|message|>"].map(|it| self.literal(it));
        let constrain = if constrain.starts_with('<') { constrain } else { String::from("\"\"") };
        let recipient = Value::from(format!(" to=functions.{name}"));
        let arguments = self.json(&object(schema));
        self.rule(&format!(
            "({channel} \"commentary\" {recipient} | {recipient} {channel} \"commentary\") \
             (\" \"? {constrain}? \"json\")? {message} {arguments}"
        ))
    }

    /// Tagged arguments in any order, each at most once as far as a grammar of a bounded size
    /// can say so.
    fn tagged_arguments(&mut self, calls: TaggedCalls, schema: &Value) -> String {
        /// Arguments that are counted; each doubles the number of rules.
        const MAX_COUNTED: usize = 6;
        let mut parameters = Parameters::of(schema);
        // Those that must be given are counted first.
        let required = parameters.required.clone();
        parameters.properties.sort_by_key(|(name, _)| !required.contains(name));
        let mut arguments = Vec::new();
        for (key, property) in &parameters.properties {
            let before = format!("{}{key}", calls.key);
            arguments.push(self.argument(calls, schema, &before, property));
        }
        let n_counted = arguments.len().min(MAX_COUNTED);
        let mut free: Vec<String> = arguments.split_off(n_counted);
        if let Some(others) = &parameters.others {
            free.push(self.other_argument(calls, schema, &parameters, others));
        }
        let n_required = required.len().min(n_counted);
        let (all_required, all) = ((1_usize << n_required) - 1, 1_usize << n_counted);
        let mut names = vec![String::new(); all];
        for given in (0..all).rev() {
            let mut ways: Vec<String> = (0..n_counted)
                .filter(|i| given >> i & 1 == 0)
                .map(|i| format!("{} {}", arguments[i], names[given | 1 << i]))
                .collect();
            if given & all_required == all_required {
                ways.push(String::from("\"\""));
            }
            let others = match free.is_empty() {
                true => String::new(),
                false => format!("({})* ", free.join(" | ")),
            };
            names[given] = self.rule(&format!("{others}({})", ways.join(" | ")));
        }
        names.swap_remove(0)
    }

    /// An argument that the schema does not name.
    fn other_argument(
        &mut self,
        calls: TaggedCalls,
        schema: &Value,
        parameters: &Parameters,
        others: &Value,
    ) -> String {
        let names: Vec<String> = parameters
            .properties
            .iter()
            .map(|(name, _)| name.chars().map(regex_char).collect())
            .collect();
        let but = match names.is_empty() {
            true => String::new(),
            false => format!(" & ~/({})/", names.join("|")),
        };
        self.n += 1;
        let name = format!("KEY{}", self.n);
        let _ = writeln!(self.text, "{name}: /[^<>\"=\\n]{{1,100}}/{but}");
        let key = self.literal(calls.key);
        let before = self.rule(&format!("{key} {name}"));
        self.argument_after(calls, schema, &before, others)
    }

    fn argument(
        &mut self,
        calls: TaggedCalls,
        schema: &Value,
        before: &str,
        property: &Value,
    ) -> String {
        let before = self.literal(before);
        let before = self.rule(&before);
        self.argument_after(calls, schema, &before, property)
    }

    /// The value of an argument and the tags around it, `before` being the rule of its name.
    fn argument_after(
        &mut self,
        calls: TaggedCalls,
        schema: &Value,
        before: &str,
        property: &Value,
    ) -> String {
        let end = self.loose(calls.value_end);
        let kind = Kind::of(property, schema);
        let value = self.loose(calls.value);
        let mut forms = Vec::new();
        if let Some(choices) = kind.choices.as_ref().filter(|_| kind.is_text()) {
            let choices: Vec<String> = choices.iter().filter_map(|it| quoted(it)).collect();
            forms.push(format!("{before} {value} ({}) {end}", choices.join(" | ")));
        } else if kind.text {
            let text = self.text_until(calls.value_end);
            forms.push(format!("{before} {value} {text}"));
        }
        let value =
            calls.json_value.map(|it| self.loose(it)).or(Some(value).filter(|_| !kind.text));
        if let Some(value) = value.filter(|_| !kind.is_text()) {
            let mut ways = vec![self.json(&lenient(&with_definitions(property, schema)))];
            if calls.json_value.is_none() {
                // Some templates show their models constants as Python writes them.
                let has = |name: &str| kind.types.iter().any(|it| it == name);
                ways.extend(has("boolean").then(|| String::from("\"True\" | \"False\"")));
                ways.extend(has("null").then(|| String::from("\"None\"")));
            }
            forms.push(format!("{before} {value} ({}) {end}", ways.join(" | ")));
        }
        self.rule(&forms.join(" | "))
    }

    /// Markup whose line ends may be left out, as some versions of a family do.
    fn loose(&self, text: &str) -> String {
        let parts = text.split('\n').map(|it| self.literal(it));
        parts.collect::<Vec<_>>().join(" NL? ")
    }

    /// Any text and then a marker.
    fn text_until(&mut self, marker: &str) -> String {
        if self.control_at(marker).is_some() {
            return format!("TEXT? {}", self.loose(marker));
        }
        if let Some((before, rest)) = self.split_at_control(marker) {
            return format!("{} {}", self.text_ending(before, ""), self.loose(rest));
        }
        format!("{} NL?", self.text_ending(marker.trim(), "[lazy]"))
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
    close(&mut schema);
    if let Some(fields) = schema.as_object_mut() {
        fields.entry("type").or_insert_with(|| Value::from("object"));
    }
    schema
}

/// Keeps objects whose fields are listed from having others, unless the schema asks for them.
/// Parts that are joined with other parts stay as they are.
fn close(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else { return };
    if ["allOf", "anyOf", "oneOf", "$ref", "patternProperties"]
        .iter()
        .any(|it| fields.contains_key(*it))
    {
        return;
    }
    if fields.contains_key("properties") {
        fields.entry("additionalProperties").or_insert(Value::Bool(false));
    }
    let inner = fields.get_mut("properties").and_then(Value::as_object_mut);
    inner.into_iter().flat_map(Map::values_mut).for_each(close);
    fields.get_mut("items").into_iter().for_each(close);
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
