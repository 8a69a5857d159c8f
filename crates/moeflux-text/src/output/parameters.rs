//! What a tool's JSON schema says of arguments that are written one by one.

use serde_json::Value;

/// References that are followed from one to the next at most.
const MAX_DEPTH: usize = 8;

/// The arguments of a tool, from all parts of its schema.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parameters {
    /// Names and schemas, in the schema's order.
    pub(crate) properties: Vec<(String, Value)>,
    /// Names that every call has.
    pub(crate) required: Vec<String>,
    /// The schema of other arguments, where there may be some.
    pub(crate) others: Option<Value>,
}

/// What the value of an argument may be.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kind {
    /// Text without quotes.
    pub(crate) text: bool,
    /// JSON types other than strings.
    pub(crate) types: Vec<String>,
    /// The only texts, where they are listed.
    pub(crate) choices: Option<Vec<String>>,
}

impl Parameters {
    pub(crate) fn of(schema: &Value) -> Parameters {
        let mut all = Parameters::default();
        all.add(schema, schema, true, 0);
        if all.properties.is_empty() && all.others.is_none() && !is_closed(schema) {
            let is_described = schema.get("properties").is_some() || schema.get("type").is_none();
            all.others = (!is_described).then_some(Value::Bool(true));
        }
        all.required.retain(|name| all.properties.iter().any(|(property, _)| property == name));
        all
    }

    /// Puts the arguments that every call has before the others, and gives their number.
    pub(crate) fn put_required_first(&mut self) -> usize {
        let required = &self.required;
        self.properties.sort_by_key(|(name, _)| !required.contains(name));
        required.len()
    }

    /// The schema of an argument.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        let own =
            self.properties.iter().find(|(name, _)| name == key).map(|(_, property)| property);
        own.or(self.others.as_ref())
    }

    fn add(&mut self, part: &Value, root: &Value, is_certain: bool, depth: usize) {
        if depth > MAX_DEPTH {
            return;
        }
        if let Some(target) = part["$ref"].as_str().and_then(|pointer| target(root, pointer)) {
            self.add(target, root, is_certain, depth + 1);
        }
        for (name, property) in part["properties"].as_object().into_iter().flatten() {
            if self.properties.iter().all(|(property, _)| property != name) {
                self.properties.push((name.clone(), property.clone()));
            }
        }
        let required = part["required"].as_array().into_iter().flatten().filter(|_| is_certain);
        for name in required.filter_map(Value::as_str) {
            if self.required.iter().all(|required| required != name) {
                self.required.push(name.to_owned());
            }
        }
        match &part["additionalProperties"] {
            Value::Null | Value::Bool(false) => {}
            others => self.others = Some(others.clone()),
        }
        for (name, is_certain) in [("allOf", is_certain), ("anyOf", false), ("oneOf", false)] {
            for inner in part[name].as_array().into_iter().flatten() {
                self.add(inner, root, is_certain, depth + 1);
            }
        }
    }
}

impl Kind {
    /// That of a property of the schema `root`.
    pub(crate) fn of(property: &Value, root: &Value) -> Kind {
        let mut kind = Kind::default();
        kind.add(property, root, 0);
        kind
    }

    /// Whether the value can be nothing but text.
    pub(crate) fn is_text(&self) -> bool {
        self.text && self.types.is_empty()
    }

    /// Whether a JSON value that was written is one of those that are expected.
    pub(crate) fn allows(&self, value: &Value) -> bool {
        let has = |name: &str| self.types.iter().any(|kind| kind == name || kind == "any");
        match value {
            Value::Null => has("null"),
            Value::Bool(_) => has("boolean"),
            Value::Number(n) => has("number") || (has("integer") && !n.is_f64()),
            Value::String(_) => false,
            Value::Array(_) => has("array"),
            Value::Object(_) => has("object"),
        }
    }

    fn add(&mut self, part: &Value, root: &Value, depth: usize) {
        if depth > MAX_DEPTH {
            return;
        }
        if let Some(target) = part["$ref"].as_str().and_then(|pointer| target(root, pointer)) {
            return self.add(target, root, depth + 1);
        }
        let listed = part["enum"].as_array().cloned();
        let listed = listed.or_else(|| part.get("const").map(|value| vec![value.clone()]));
        if let Some(listed) = listed {
            for value in listed {
                match value {
                    Value::String(text) => self.choose(text),
                    other => self.types.push(type_of(&other).to_owned()),
                }
            }
            return;
        }
        if part["nullable"] == Value::Bool(true) {
            self.types.push(String::from("null"));
        }
        let names: Vec<&str> = match &part["type"] {
            Value::String(name) => vec![name],
            Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        let inner = ["anyOf", "oneOf", "allOf"].map(|key| part[key].as_array());
        let mut is_said = !names.is_empty();
        for name in names {
            if name == "string" {
                (self.text, self.choices) = (true, None);
            } else {
                self.types.push(name.to_owned());
            }
        }
        for one in inner.into_iter().flatten().flatten().filter(|_| !is_said) {
            self.add(one, root, depth + 1);
        }
        is_said |= inner.iter().any(Option::is_some);
        if !is_said {
            (self.text, self.choices) = (true, None);
            self.types.push(String::from("any"));
        }
    }

    fn choose(&mut self, text: String) {
        match &mut self.choices {
            Some(choices) => choices.push(text),
            None if !self.text => self.choices = Some(vec![text]),
            None => {}
        }
        self.text = true;
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn is_closed(schema: &Value) -> bool {
    schema["additionalProperties"] == Value::Bool(false)
}

fn target<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    root.pointer(reference.strip_prefix('#')?)
}
