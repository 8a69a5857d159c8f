//! Rules of a grammar in the Lark notation, one by one.

use std::collections::HashMap;
use std::fmt::Write;

use serde_json::{Map, Value, json};

use crate::output::DSML;
use crate::tokenizer::Tokenizer;

/// Values of definitions, each counted once for each argument that leads to it, as every argument
/// has a grammar of its own.
pub(super) const MAX_REPEATED: usize = 1 << 15;
/// Bytes of rules that the arguments of all tools may have together: compiling takes time for each.
/// Further tools may have any arguments.
const MAX_CALL_BYTES: usize = 1 << 18;
/// Bytes of rules of a grammar.
const MAX_BYTES: usize = 1 << 19;
/// Bytes of a control token at most. Names of arguments are searched for these at every character.
const MAX_CONTROL_BYTES: usize = 256;

/// Rules so far.
pub(super) struct Rules<'a> {
    tokenizer: &'a Tokenizer,
    pub(super) text: String,
    pub(super) n: usize,
    /// Names of rules and terminals by what they say.
    names: HashMap<String, String>,
    /// Values of definitions that were added to parts of schemas.
    n_repeated: usize,
    /// The rule of any value in the notation of names without quotes, once there is one.
    pub(super) any_bare: Option<String>,
}

impl<'a> Rules<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer) -> Rules<'a> {
        Rules {
            tokenizer,
            text: String::new(),
            n: 0,
            names: HashMap::new(),
            n_repeated: 0,
            any_bare: None,
        }
    }

    /// Whether the rules have become too many for a grammar to be compiled soon. They are then of no
    /// use.
    pub(super) fn is_too_large(&self) -> bool {
        self.n_repeated > MAX_REPEATED || self.text.len() > MAX_BYTES
    }

    /// Why the rules are of no use.
    ///
    /// # Errors
    /// Where they are not.
    pub(super) fn check_size(&self) -> Result<(), String> {
        if self.n_repeated > MAX_REPEATED {
            return Err(format!(
                "definitions have more than {MAX_REPEATED} values, counted once for each argument \
                 that leads to them"
            ));
        }
        if self.text.len() > MAX_BYTES {
            return Err(format!("its grammar has more than {MAX_BYTES} bytes"));
        }
        Ok(())
    }

    /// Whether there is room for the arguments of one more tool.
    pub(super) fn has_room_for_arguments(&self) -> bool {
        self.text.len() < MAX_CALL_BYTES
    }

    /// A part of the schema `root` with the definitions that it leads to.
    pub(super) fn with_definitions(&mut self, part: &Value, root: &Value) -> Value {
        let (mut part, mut used) = (part.clone(), Map::new());
        let definitions = root["$defs"].as_object();
        let mut waiting = targets(&part);
        while let Some(name) = waiting.pop() {
            let definition = definitions.and_then(|all| all.get(&name));
            let Some(definition) = definition.filter(|_| !used.contains_key(&name)) else {
                continue;
            };
            self.n_repeated += walk(definition, &mut |_| {}).0;
            if self.is_too_large() {
                return json!({});
            }
            waiting.extend(targets(definition));
            used.insert(name, definition.clone());
        }
        if let Some(fields) = part.as_object_mut().filter(|_| !used.is_empty()) {
            fields.insert(String::from("$defs"), Value::Object(used));
        }
        part
    }

    /// Adds a rule, unless one says the same, and gives its name.
    pub(super) fn rule(&mut self, body: &str) -> String {
        self.once("r", body)
    }

    /// Adds a rule or a terminal, unless one says the same, and gives its name.
    pub(super) fn once(&mut self, prefix: &str, body: &str) -> String {
        self.once_with(prefix, "", body)
    }

    fn once_with(&mut self, prefix: &str, attributes: &str, body: &str) -> String {
        let known = format!("{prefix}{attributes} {body}");
        if let Some(name) = self.names.get(&known) {
            return name.clone();
        }
        self.n += 1;
        let name = format!("{prefix}{}", self.n);
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "{name}{attributes}: {body}");
        self.names.insert(known, name.clone());
        name
    }

    /// One of several texts, as a single terminal: the library takes long for thousands of
    /// alternatives. `None` where there is no text.
    pub(super) fn one_of(&mut self, texts: &[String]) -> Option<String> {
        let texts: Vec<String> = texts.iter().filter_map(|text| quoted(text)).collect();
        (!texts.is_empty()).then(|| self.once("ONE", &texts.join(" | ")))
    }

    /// Text whose control tokens are tokens.
    pub(super) fn literal(&self, text: &str) -> String {
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
    pub(super) fn control_at<'t>(&self, text: &'t str) -> Option<(&'t str, u32)> {
        let inner = text.starts_with(DSML).then(|| &text[..DSML.len()]);
        let close = match text.chars().next()? {
            '<' => '>',
            '[' => ']',
            c if DSML.starts_with(c) => c,
            _ => return None,
        };
        let head = &text[..text.floor_char_boundary(MAX_CONTROL_BYTES)];
        let ends = head.match_indices(close).map(|(at, _)| &text[..at + close.len_utf8()]);
        inner.into_iter().chain(ends).find_map(|token| {
            let id = self.tokenizer.id_of(token).filter(|id| self.tokenizer.is_control(*id))?;
            Some((token, id.0))
        })
    }

    /// JSON as a schema has it, written the way templates write JSON.
    pub(super) fn json(&mut self, schema: &Value) -> String {
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
        let is_lenient = own.is_some_and(|value| value.get("lenient") == Some(&Value::Bool(true)));
        let mut options = style;
        options["lenient"] = Value::from(is_lenient);
        schema.insert(String::from("x-guidance"), options);
        self.rule(&format!("%json {}", Value::Object(schema)))
    }

    /// Text in front of the first control token, and the rest; `None` where
    /// there is no such token or no such text.
    pub(super) fn split_at_control<'t>(&self, text: &'t str) -> Option<(&'t str, &'t str)> {
        let mut places = text.char_indices().map(|(at, _)| at);
        let at = places.find(|at| self.control_at(&text[*at..]).is_some())?;
        (at > 0).then(|| text.split_at(at))
    }

    /// Markup whose line ends and spaces may be left out, as some versions of a family do.
    pub(super) fn loose(&self, text: &str) -> String {
        let mut parts = Vec::new();
        for (i, line) in text.split('\n').enumerate() {
            parts.extend((i > 0).then(|| String::from("NL?")));
            // Spaces of JSON.
            for (j, piece) in line.split(": ").enumerate() {
                parts.extend((j > 0).then(|| String::from("\":\" \" \"?")));
                for (k, piece) in piece.split(", ").enumerate() {
                    parts.extend((k > 0).then(|| String::from("\",\" \" \"?")));
                    parts.push(self.literal(piece));
                }
            }
        }
        parts.retain(|part| !part.is_empty());
        parts.join(" ")
    }

    /// Any text and then a marker.
    pub(super) fn text_until(&mut self, marker: &str) -> String {
        if self.control_at(marker).is_some() {
            return format!("TEXT? {}", self.loose(marker));
        }
        if let Some((before, rest)) = self.split_at_control(marker) {
            return format!("{} {}", self.text_ending(before, ""), self.loose(rest));
        }
        format!("{} NL?", self.text_ending(marker.trim(), "[lazy]"))
    }

    /// Any text that ends so.
    pub(super) fn text_ending(&mut self, end: &str, attributes: &str) -> String {
        let escaped: String = end.chars().map(regex_char).collect();
        self.once_with("v", attributes, &format!("/(.|\\n)*{escaped}/"))
    }
}

/// The number of values in `value` and how deep they are nested; shows each object to `visit`.
pub(super) fn walk(
    value: &Value,
    visit: &mut dyn FnMut(&serde_json::Map<String, Value>),
) -> (usize, usize) {
    let (mut n_values, mut deepest) = (0, 0);
    let mut todo = vec![(value, 1)];
    while let Some((value, depth)) = todo.pop() {
        n_values += 1;
        deepest = deepest.max(depth);
        match value {
            Value::Array(items) => todo.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(fields) => {
                visit(fields);
                todo.extend(fields.values().map(|field| (field, depth + 1)));
            }
            _ => {}
        }
    }
    (n_values, deepest)
}

/// The names of the definitions that a schema refers to.
pub(super) fn targets(schema: &Value) -> Vec<String> {
    let mut names = Vec::new();
    walk(schema, &mut |fields| {
        let reference = fields.get("$ref").and_then(Value::as_str);
        names.extend(reference.and_then(|text| text.strip_prefix("#/$defs/")).map(str::to_owned));
    });
    names
}

/// The largest magnitude that every reader of JSON takes: 2^53 - 1.
const LARGEST_INTEGER: i64 = (1 << 53) - 1;

/// What bounds an integer already.
const BOUNDS: [&str; 7] =
    ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "enum", "const", "multipleOf"];

/// Keeps whole numbers without bounds from going on for ever.
fn bound_integers(schema: &mut Map<String, Value>) {
    let is_integer = schema.get("type").is_some_and(|kind| kind == "integer");
    if is_integer && !BOUNDS.iter().any(|key| schema.contains_key(*key)) {
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

/// Tools were written for models, not for grammars: what a grammar cannot
/// enforce is left to the model.
pub(super) fn lenient(schema: &Value) -> Value {
    let mut schema = if schema.is_object() { schema.clone() } else { json!({}) };
    schema["x-guidance"] = json!({"lenient": true});
    schema
}

/// A string of the Lark notation; nothing for no text.
pub(super) fn quoted(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| Value::from(text).to_string())
}

pub(super) fn regex_char(c: char) -> String {
    match c {
        '\n' => String::from("\\n"),
        // Angle brackets behind a backslash are word boundaries.
        c if "\\.+*?()|[]{}^$/".contains(c) => format!("\\{c}"),
        c => c.to_string(),
    }
}
