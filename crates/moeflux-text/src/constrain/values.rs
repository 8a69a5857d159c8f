//! The arguments of a call as one object, as rules of a grammar: in JSON, or in the notation that has
//! JSON's structure and quotes of its own.
//!
//! Nested objects may have their members in any order too, to a bounded depth.

use std::fmt::Write;

use serde_json::{Value, json};

use super::members::{Level, MAX_NESTED, MAX_RULES, Members, names_but};
use super::rules::{Rules, lenient, quoted};
use crate::{Kind, Parameters};

/// How an object is written.
#[derive(Clone, Copy, Debug)]
pub(super) enum Notation<'a> {
    /// As JSON.
    Json,
    /// With names as they are, and strings between these.
    Bare { quote: &'a str },
}

impl Notation<'_> {
    /// The name of a member.
    fn key(self, name: &str) -> String {
        match self {
            Notation::Json => Value::from(name).to_string(),
            Notation::Bare { .. } => name.to_owned(),
        }
    }

    /// A regular expression for the names of further members.
    fn any_key(self) -> &'static str {
        match self {
            Notation::Json => "/\"[^\"\\\\\\x00-\\x1f]{0,100}\"/",
            Notation::Bare { .. } => "/[^<>\"\\\\{}:,\\[\\]\\x00-\\x20]{1,100}/",
        }
    }
}

/// Values of the arguments of a call.
pub(super) struct Values<'a, 'r> {
    pub(super) rules: &'a mut Rules<'r>,
    pub(super) notation: Notation<'a>,
    /// What has the definitions that schemas refer to.
    pub(super) root: &'a Value,
}

impl Values<'_, '_> {
    /// An object, as the arguments of a call are one.
    pub(super) fn object(&mut self, schema: &Value, level: Level) -> String {
        let mut parameters = Parameters::within(schema, self.root);
        let n_required = parameters.put_required_first();
        let mut members = Members { n_required, separator: "COMMA", ..Members::default() };
        for (key, property) in &parameters.properties {
            if self.rules.is_too_large() {
                break;
            }
            let key = quoted(&self.notation.key(key)).unwrap_or_default();
            let value = self.value(property, level.inner());
            members.counted.push(self.rules.rule(&format!("{key} COLON {value}")));
        }
        if let Some(others) = &parameters.others {
            let names =
                names_but(&parameters, |name| self.notation.key(name).trim_matches('"').to_owned());
            let key = self.rules.once("KEY", &format!("{}{names}", self.notation.any_key()));
            let value = self.value(others, level.inner());
            members.free.push(self.rules.rule(&format!("{key} COLON {value}")));
        }
        let members = members.unordered(self.rules, level);
        self.rules.rule(&format!("\"{{\" {members} \"}}\""))
    }

    /// A value of that notation.
    fn value(&mut self, schema: &Value, level: Level) -> String {
        match self.notation {
            Notation::Json => self.json_value(schema, level),
            Notation::Bare { quote } => self.bare_value(quote, schema, level),
        }
    }

    /// A JSON value.
    fn json_value(&mut self, schema: &Value, level: Level) -> String {
        let is_object = schema["type"] == "object"
            && schema["properties"].as_object().is_some_and(|all| all.len() > 1)
            && !schema["additionalProperties"].is_object();
        if is_object && level.depth <= MAX_NESTED {
            return self.object(schema, level);
        }
        let schema = lenient(&self.rules.with_definitions(schema, self.root));
        self.rules.json(&schema)
    }

    /// A value that a schema describes. What the library's grammar of JSON would enforce inside
    /// strings and lists is left to the model.
    fn bare_value(&mut self, quote: &str, schema: &Value, level: Level) -> String {
        let target = schema["$ref"].as_str().and_then(|name| name.strip_prefix('#'));
        // Alternatives that refer to each other multiply with each level.
        if level.depth > MAX_NESTED + 1 || self.rules.n > MAX_RULES {
            return self.any_bare_value(quote);
        }
        if let Some(target) = target.and_then(|pointer| self.root.pointer(pointer)) {
            return self.bare_value(quote, target, level.inner());
        }
        let parts = ["anyOf", "oneOf"].into_iter().find_map(|key| schema[key].as_array());
        if let Some(parts) = parts.filter(|_| schema.get("type").is_none()) {
            let (literals, parts): (Vec<_>, Vec<_>) =
                parts.iter().map(|part| listed(part).ok_or(part)).partition(Result::is_ok);
            let literals: Vec<Value> = literals.into_iter().flatten().flatten().collect();
            let mut ways = if literals.is_empty() {
                Vec::new()
            } else {
                vec![self.bare_value(quote, &json!({"enum": literals}), level)]
            };
            for part in parts.into_iter().filter_map(Result::err) {
                ways.push(self.bare_value(quote, part, level.inner()));
            }
            return self.rules.rule(&ways.join(" | "));
        }
        let ways = listed(schema).and_then(|listed| self.bare_constants(quote, &listed));
        if let Some(ways) = ways.filter(|ways| !ways.is_empty()) {
            return self.rules.rule(&ways.join(" | "));
        }
        let kind = Kind::of(schema, self.root);
        if kind.types.iter().any(|name| name == "any") {
            return self.any_bare_value(quote);
        }
        let mut ways = Vec::new();
        if kind.text {
            ways.push(self.bare_text(quote));
        }
        for name in &kind.types {
            ways.push(self.bare_of_type(quote, name, schema, level));
        }
        self.rules.rule(&ways.join(" | "))
    }

    /// A value of one JSON type other than strings.
    fn bare_of_type(&mut self, quote: &str, name: &str, schema: &Value, level: Level) -> String {
        match name {
            "object" => self.object(schema, level),
            "array" => {
                let item = match schema.get("items") {
                    Some(items) => self.bare_value(quote, items, level.inner()),
                    None => self.any_bare_value(quote),
                };
                self.rules.rule(&format!("\"[\" ({item} (COMMA {item})*)? \"]\""))
            }
            // Templates may write a null as Python does.
            "null" => String::from("(\"null\" | \"None\")"),
            name if schema["type"] == name => self.rules.json(&lenient(schema)),
            name => self.rules.json(&json!({"type": name})),
        }
    }

    /// The values that a schema lists; `None` where objects or lists are among them.
    fn bare_constants(&mut self, quote: &str, listed: &[Value]) -> Option<Vec<String>> {
        let (mut texts, mut others) = (Vec::new(), Vec::new());
        for value in listed {
            match value {
                Value::Object(_) | Value::Array(_) => return None,
                Value::String(text) => texts.push(text.clone()),
                other => others.push(other.to_string()),
            }
        }
        let quote = self.rules.literal(quote);
        let has_empty = texts.iter().any(String::is_empty);
        let texts = self.rules.one_of(&texts).map(|texts| format!("{quote} {texts} {quote}"));
        let empty = has_empty.then(|| format!("{quote} {quote}"));
        let others = self.rules.one_of(&others);
        Some([texts, empty, others].into_iter().flatten().collect())
    }

    fn bare_text(&mut self, quote: &str) -> String {
        format!("{} {}", self.rules.literal(quote), self.rules.text_until(quote))
    }

    /// Any value; the rule names itself, for values in values.
    fn any_bare_value(&mut self, quote: &str) -> String {
        if let Some(name) = &self.rules.any_bare {
            return name.clone();
        }
        self.rules.n += 1;
        let name = format!("bare{}", self.rules.n);
        self.rules.any_bare = Some(name.clone());
        let text = self.bare_text(quote);
        let number = self.rules.json(&json!({"type": ["number", "boolean", "null"]}));
        let key = self.rules.once("KEY", self.notation.any_key());
        let member = self.rules.rule(&format!("{key} COLON {name}"));
        // Writing to a string does not fail.
        let _ = writeln!(
            self.rules.text,
            "{name}: {text} | {number} | \"None\" | \"[\" ({name} (COMMA {name})*)? \"]\" \
             | \"{{\" ({member} (COMMA {member})*)? \"}}\""
        );
        name
    }
}

/// The values that a schema lists.
fn listed(schema: &Value) -> Option<Vec<Value>> {
    let listed = schema["enum"].as_array().cloned();
    listed.or_else(|| schema.get("const").map(|value| vec![value.clone()]))
}
