//! Values of the notation that has JSON's structure and quotes of its own, as rules of a grammar.

use std::fmt::Write;

use serde_json::{Value, json};

use super::arguments::{Level, MAX_NESTED, MAX_RULES, Notation};
use super::rules::{Rules, lenient};
use crate::Kind;

impl Rules<'_> {
    /// A value that a schema describes. What the library's grammar of JSON would enforce inside
    /// strings and lists is left to the model.
    pub(super) fn bare_value(
        &mut self,
        quote: &str,
        schema: &Value,
        root: &Value,
        level: Level,
    ) -> String {
        let target = schema["$ref"].as_str().and_then(|name| name.strip_prefix('#'));
        // Alternatives that refer to each other multiply with each level.
        if level.depth > MAX_NESTED + 1 || self.n > MAX_RULES {
            return self.any_bare_value(quote);
        }
        if let Some(target) = target.and_then(|pointer| root.pointer(pointer)) {
            return self.bare_value(quote, target, root, level.inner());
        }
        let parts = ["anyOf", "oneOf"].into_iter().find_map(|key| schema[key].as_array());
        if let Some(parts) = parts.filter(|_| schema.get("type").is_none()) {
            let (literals, parts): (Vec<_>, Vec<_>) =
                parts.iter().map(|part| listed(part).ok_or(part)).partition(Result::is_ok);
            let literals: Vec<Value> = literals.into_iter().flatten().flatten().collect();
            let mut ways = match literals.is_empty() {
                true => Vec::new(),
                false => vec![self.bare_value(quote, &json!({"enum": literals}), root, level)],
            };
            for part in parts.into_iter().filter_map(Result::err) {
                ways.push(self.bare_value(quote, part, root, level.inner()));
            }
            return self.rule(&ways.join(" | "));
        }
        let ways = listed(schema).and_then(|listed| self.bare_constants(quote, &listed));
        if let Some(ways) = ways.filter(|ways| !ways.is_empty()) {
            return self.rule(&ways.join(" | "));
        }
        let kind = Kind::of(schema, root);
        if kind.types.iter().any(|name| name == "any") {
            return self.any_bare_value(quote);
        }
        let mut ways = Vec::new();
        if kind.text {
            ways.push(self.bare_text(quote));
        }
        for name in &kind.types {
            ways.push(self.bare_of_type(quote, name, schema, root, level));
        }
        self.rule(&ways.join(" | "))
    }

    /// A value of one JSON type other than strings.
    fn bare_of_type(
        &mut self,
        quote: &str,
        name: &str,
        schema: &Value,
        root: &Value,
        level: Level,
    ) -> String {
        match name {
            "object" => {
                let notation = Notation::Bare { quote };
                self.object_arguments(notation, schema, root, level)
            }
            "array" => {
                let item = match schema.get("items") {
                    Some(items) => self.bare_value(quote, items, root, level.inner()),
                    None => self.any_bare_value(quote),
                };
                self.rule(&format!("\"[\" ({item} (COMMA {item})*)? \"]\""))
            }
            // Templates may write a null as Python does.
            "null" => String::from("(\"null\" | \"None\")"),
            name if schema["type"] == name => self.json(&lenient(schema)),
            name => self.json(&json!({"type": name})),
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
        let quote = self.literal(quote);
        let has_empty = texts.iter().any(String::is_empty);
        let texts = self.one_of(&texts).map(|texts| format!("{quote} {texts} {quote}"));
        let empty = has_empty.then(|| format!("{quote} {quote}"));
        let others = self.one_of(&others);
        Some([texts, empty, others].into_iter().flatten().collect())
    }

    fn bare_text(&mut self, quote: &str) -> String {
        format!("{} {}", self.literal(quote), self.text_until(quote))
    }

    /// Any value; the rule names itself, for values in values.
    fn any_bare_value(&mut self, quote: &str) -> String {
        if let Some(name) = &self.any_bare {
            return name.clone();
        }
        self.n += 1;
        let name = format!("bare{}", self.n);
        self.any_bare = Some(name.clone());
        let text = self.bare_text(quote);
        let number = self.json(&json!({"type": ["number", "boolean", "null"]}));
        let key = self.once("KEY", Notation::Bare { quote }.any_key());
        let member = self.rule(&format!("{key} COLON {name}"));
        // Writing to a string does not fail.
        let _ = writeln!(
            self.text,
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
