//! What a tool's JSON schema says of arguments that are written one by one.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

/// References that are followed from one to the next at most.
const MAX_DEPTH: usize = 8;

/// Parts that are read for one argument, or one object, at most.
const MAX_PARTS: usize = 4 << 10;

/// Names of types other than strings; `any` stands for all of them.
const TYPES: [&str; 7] = ["null", "boolean", "number", "integer", "array", "object", "any"];

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

/// Parts of a schema that were read. Parts that refer to each other are reached in many ways, all
/// of which say the same.
#[derive(Default)]
struct Read {
    /// The least depth at which each part was read, and whether its arguments then were those of
    /// every call.
    depths: HashMap<(*const Value, bool), usize>,
    n_parts: usize,
}

impl Read {
    /// Whether a part may say more than it did before.
    fn is_new(&mut self, part: &Value, is_certain: bool, depth: usize) -> bool {
        let least = self.depths.entry((part, is_certain)).or_insert(usize::MAX);
        let is_new = depth < *least && depth <= MAX_DEPTH;
        *least = depth.min(*least);
        self.n_parts += usize::from(is_new);
        is_new && !self.is_too_large()
    }

    /// Whether parts were left out.
    fn is_too_large(&self) -> bool {
        self.n_parts > MAX_PARTS
    }
}

/// Parameters as they are being read.
struct Reading<'a> {
    root: &'a Value,
    read: Read,
    names: HashSet<&'a str>,
    /// Names of which nothing but that they may be there is known.
    bare: HashSet<&'a str>,
    required: HashSet<&'a str>,
    found: Parameters,
}

impl Parameters {
    pub(crate) fn of(schema: &Value) -> Parameters {
        Parameters::within(schema, schema)
    }

    /// Those of a part of the schema `root`, whose definitions it refers to.
    pub(crate) fn within(schema: &Value, root: &Value) -> Parameters {
        let mut reading = Reading {
            root,
            read: Read::default(),
            names: HashSet::new(),
            bare: HashSet::new(),
            required: HashSet::new(),
            found: Parameters::default(),
        };
        reading.add(schema, true, 0);
        let Reading { names, read, found: mut all, .. } = reading;
        if read.is_too_large() {
            all.others = Some(Value::Bool(true));
        }
        if all.properties.is_empty() && all.others.is_none() && !is_closed(schema) {
            let is_described = schema.get("properties").is_some() || schema.get("type").is_none();
            all.others = (!is_described).then_some(Value::Bool(true));
        }
        all.required.retain(|name| names.contains(name.as_str()));
        all
    }

    /// Puts the arguments that every call has before the others, and gives their number.
    pub(crate) fn put_required_first(&mut self) -> usize {
        let required: HashSet<&str> = self.required.iter().map(String::as_str).collect();
        self.properties.sort_by_key(|(name, _)| !required.contains(name.as_str()));
        self.required.len()
    }

    /// The schema of an argument.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        let own =
            self.properties.iter().find(|(name, _)| name == key).map(|(_, property)| property);
        own.or(self.others.as_ref())
    }
}

impl<'a> Reading<'a> {
    fn add(&mut self, part: &'a Value, is_certain: bool, depth: usize) {
        if !self.read.is_new(part, is_certain, depth) {
            return;
        }
        if let Some(target) = part["$ref"].as_str().and_then(|pointer| target(self.root, pointer)) {
            self.add(target, is_certain, depth + 1);
        }
        for (name, property) in part["properties"].as_object().into_iter().flatten() {
            let is_bare = property.as_object().is_some_and(serde_json::Map::is_empty);
            if self.names.insert(name) {
                self.found.properties.push((name.clone(), property.clone()));
                if is_bare {
                    self.bare.insert(name);
                }
            } else if !is_bare && self.bare.remove(name.as_str()) {
                let known = self.found.properties.iter_mut().find(|(known, _)| known == name);
                known.into_iter().for_each(|(_, known)| known.clone_from(property));
            }
        }
        let required = part["required"].as_array().into_iter().flatten().filter(|_| is_certain);
        for name in required.filter_map(Value::as_str) {
            if self.required.insert(name) {
                self.found.required.push(name.to_owned());
            }
        }
        match &part["additionalProperties"] {
            Value::Null | Value::Bool(false) => {}
            others => self.found.others = Some(others.clone()),
        }
        for (name, is_certain) in [("allOf", is_certain), ("anyOf", false), ("oneOf", false)] {
            for inner in part[name].as_array().into_iter().flatten() {
                self.add(inner, is_certain, depth + 1);
            }
        }
    }
}

impl Kind {
    /// That of a property of the schema `root`.
    pub(crate) fn of(property: &Value, root: &Value) -> Kind {
        let mut kind = Kind::default();
        let mut read = Read::default();
        kind.add(property, root, &mut read, 0);
        if read.is_too_large() {
            kind.take_any();
        }
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

    fn add(&mut self, part: &Value, root: &Value, read: &mut Read, depth: usize) {
        if !read.is_new(part, true, depth) {
            return;
        }
        if let Some(target) = part["$ref"].as_str().and_then(|pointer| target(root, pointer)) {
            return self.add(target, root, read, depth + 1);
        }
        let listed = part["enum"].as_array().cloned();
        let listed = listed.or_else(|| part.get("const").map(|value| vec![value.clone()]));
        if let Some(listed) = listed {
            for value in listed {
                match value {
                    Value::String(text) => self.choose(text),
                    other => self.take_type(type_of(&other)),
                }
            }
            return;
        }
        if part["nullable"] == Value::Bool(true) {
            self.take_type("null");
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
                self.take_type(name);
            }
        }
        for one in inner.into_iter().flatten().flatten().filter(|_| !is_said) {
            self.add(one, root, read, depth + 1);
        }
        is_said |= inner.iter().any(Option::is_some);
        if !is_said {
            self.take_any();
        }
    }

    fn take_any(&mut self) {
        (self.text, self.choices) = (true, None);
        self.take_type("any");
    }

    /// Adds a type. Of the names that JSON Schema does not have it keeps the first.
    fn take_type(&mut self, name: &str) {
        let is_known = |name: &str| TYPES.contains(&name);
        let is_there = |other: &String| other == name || !is_known(name) && !is_known(other);
        if !self.types.iter().any(is_there) {
            self.types.push(name.to_owned());
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
