//! The keywords of a schema, one by one.

use std::collections::{HashMap, HashSet};
use std::mem;

use serde_json::{Map, Value, json};

use super::budget::Budget;
use super::numbers::{Bounds, step_size};
use super::path::Path;
use super::pattern::translate;
use super::references::References;
use super::simplified::{LeftOut, Simplified, one};
use super::values::{bytes, inexact, long_bytes, size, whole};
use super::{ends, joined};

/// Levels of JSON in the result at most: readers of JSON take 128.
const MAX_DEPTH: usize = 100;
/// Properties of one object at most: more take the library many seconds.
const MAX_PROPERTIES: usize = 1024;
/// Schemas of one `oneOf`, `anyOf` or `allOf` at most that are no literals: the time to compile
/// them grows with the square of their number.
const MAX_ALTERNATIVES: usize = 256;
/// Those that are literals.
const MAX_LITERALS: usize = 8192;
/// Bytes of the long values of one `enum` or `const` as JSON at most. Many short ones are cheap.
const MAX_LITERAL_BYTES: usize = 64 << 10;
/// Bytes of a pattern at most.
const MAX_PATTERN_BYTES: usize = 16 << 10;
/// Parts that are reported one by one.
const MAX_LEFT_OUT: usize = 1000;

/// Why a part is left out where names, patterns and values have used up the budget.
const TOO_LONG: &str = "the texts of the schemas are too long";

const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];

/// Formats of strings that the library knows.
const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];

/// Formats of numbers, which say how a number is stored and not how it is written.
const NUMBER_FORMATS: [&str; 14] = [
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "int", "uint",
    "float", "double", "decimal", "number",
];

/// Keywords that no grammar holds a model to.
const NOT_ENFORCED: [&str; 12] = [
    "not",
    "if",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "propertyNames",
    "contains",
    "minContains",
    "maxContains",
    "uniqueItems",
    "unevaluatedItems",
    "unevaluatedProperties",
];

/// Rewrites one schema.
pub(super) struct Simplifier<'a> {
    root: &'a Value,
    references: References<'a>,
    left_out: Vec<LeftOut>,
    budget: &'a mut Budget,
}

impl<'a> Simplifier<'a> {
    pub(super) fn new(root: &'a Value, budget: &'a mut Budget) -> Simplifier<'a> {
        Simplifier { root, references: References::new(root), left_out: Vec::new(), budget }
    }

    pub(super) fn run(mut self) -> Simplified {
        let mut schema = self.schema(self.root, &Path::default(), 1);
        let (mut definitions, mut places) = (Map::new(), HashMap::new());
        while let Some((target, definition)) = self.references.next_target() {
            let path = Path::of_pointer(&target.pointer);
            let definition = self.schema(definition, &path, 3);
            definitions.insert(target.name.clone(), definition);
            places.insert(target.name, path);
        }
        self.left_out.extend(ends::cut(&mut schema, &mut definitions, &places));
        self.left_out.extend(joined::cut(&mut schema, &mut definitions, &places));
        inline_root(&mut schema, &definitions);
        if let (Some(fields), false) = (schema.as_object_mut(), definitions.is_empty()) {
            fields.insert(String::from("$defs"), Value::Object(definitions));
        }
        self.left_out.truncate(MAX_LEFT_OUT);
        Simplified { schema, left_out: self.left_out, places }
    }

    fn leave_out(&mut self, path: &Path, reason: impl Into<String>) {
        if self.left_out.len() < MAX_LEFT_OUT {
            self.left_out.push(LeftOut { path: path.shown(), reason: reason.into() });
        }
    }

    /// A schema at some depth of the result.
    fn schema(&mut self, value: &Value, path: &Path, depth: usize) -> Value {
        let fields = match value {
            Value::Bool(false) => return Value::Bool(false),
            Value::Bool(true) => return json!({}),
            Value::Object(fields) => fields,
            Value::Null => return json!({}),
            _ => {
                self.leave_out(path, "it is neither an object nor true or false");
                return json!({});
            }
        };
        let is_deep = depth > MAX_DEPTH;
        if is_deep || !self.budget.take_values(1) {
            let reason =
                if is_deep { "it is nested too deeply" } else { "the schemas are too large" };
            self.leave_out(path, reason);
            return json!({});
        }
        let mut part = Part { all: self, fields, path, depth, out: Map::new() };
        part.run();
        let out = mem::take(&mut part.out);
        self.budget.take_values(out.len());
        nullable(fields, Value::Object(out))
    }
}

/// One object of a schema on its way.
struct Part<'s, 'a, 'f> {
    all: &'s mut Simplifier<'a>,
    fields: &'f Map<String, Value>,
    path: &'f Path,
    depth: usize,
    out: Map<String, Value>,
}

impl Part<'_, '_, '_> {
    fn run(&mut self) {
        // The order in which the original has its keywords decides in which order the library
        // writes the properties of parts that are joined.
        for (key, value) in self.fields {
            if value.is_null() && key != "const" {
                continue;
            }
            match key.as_str() {
                "$ref" | "$dynamicRef" | "$recursiveRef" => self.reference(key, value),
                "type" => self.types(value),
                "enum" => self.choices(value),
                "const" => self.constant(value),
                "multipleOf" => match step_size(value) {
                    None => self.leave_out(key, "its multiples cannot be computed"),
                    Some(size) if !self.all.budget.take_multiples(size) => {
                        self.leave_out(key, "it takes too long to compute its multiples");
                    }
                    Some(_) => self.keep(key, value.clone()),
                },
                "minLength" | "maxLength" | "minItems" | "maxItems" => self.count(key, value),
                "minProperties" | "maxProperties" => {}
                "pattern" => self.pattern(value),
                "format" => self.format(value),
                "allOf" | "anyOf" | "oneOf" => self.alternatives(key, value),
                "properties" => self.properties(value),
                "patternProperties" => self.pattern_properties(value),
                "additionalProperties" => {
                    let inner = self.inner(key, value, 1);
                    self.keep(key, inner);
                }
                "required" => self.required(value),
                "items" => self.items(value),
                "prefixItems" => self.prefix(key, value),
                key if NOT_ENFORCED.contains(&key) => self.not_enforced(key, value),
                // What is left are annotations, and words that JSON Schema does not know.
                _ => {}
            }
        }
        self.numbers();
        self.property_counts();
        self.close_what_is_not_evaluated();
        self.drop_impossible_requirements();
    }

    fn keep(&mut self, key: &str, value: Value) {
        self.out.insert(key.to_owned(), value);
    }

    fn leave_out(&mut self, key: &str, reason: impl Into<String>) {
        self.all.leave_out(&self.path.key(key), reason);
    }

    /// Simplifies the schema under a keyword, `levels` deeper than this one.
    fn inner(&mut self, key: &str, value: &Value, levels: usize) -> Value {
        self.all.schema(value, &self.path.key(key), self.depth + levels)
    }

    fn reference(&mut self, key: &str, value: &Value) {
        let Some(reference) = value.as_str() else {
            return self.leave_out(key, "it is no text");
        };
        match self.all.references.name_of(reference) {
            Ok(name) => self.keep("$ref", Value::from(format!("#/$defs/{name}"))),
            Err(problem) => self.leave_out(key, problem),
        }
    }

    fn types(&mut self, value: &Value) {
        let names = match value {
            Value::Array(names) => names.clone(),
            one => vec![one.clone()],
        };
        let unknown = names.iter().find(|name| !TYPES.iter().any(|known| *name == known));
        if let Some(unknown) = unknown {
            let shown: String = unknown.to_string().chars().take(40).collect();
            return self.leave_out("type", format!("{shown} is no type of JSON Schema"));
        }
        let mut kept: Vec<Value> = Vec::new();
        for name in names {
            if !kept.contains(&name) {
                kept.push(name);
            }
        }
        match (kept.len(), value.is_array()) {
            (0, _) => self.leave_out("type", "it lists no type"),
            (1, _) => self.keep("type", kept.swap_remove(0)),
            _ => self.keep("type", Value::Array(kept)),
        }
    }

    fn choices(&mut self, value: &Value) {
        let Some(choices) = value.as_array().filter(|choices| !choices.is_empty()) else {
            return self.leave_out("enum", "it lists no value");
        };
        let n = choices.len();
        if !self.all.budget.take_choices(n) {
            return self.leave_out("enum", format!("{n} values are too many for a grammar"));
        }
        let number = choices.iter().find_map(inexact);
        self.literal("enum", value, number);
    }

    fn constant(&mut self, value: &Value) {
        self.literal("const", value, inexact(value));
    }

    /// Values that are written as they are, one of which may be a `number` that cannot be.
    fn literal(&mut self, key: &str, value: &Value, number: Option<String>) {
        let n_bytes = match value {
            Value::Array(choices) if key == "enum" => choices.iter().map(long_bytes).sum(),
            one => long_bytes(one),
        };
        match number {
            Some(number) => self.leave_out(key, format!("{number} cannot be written exactly")),
            None if n_bytes > MAX_LITERAL_BYTES => {
                let problem =
                    format!("its long values have {n_bytes} bytes, and a grammar at most");
                self.leave_out(key, format!("{problem} {MAX_LITERAL_BYTES}"));
            }
            None if !self.all.budget.take_bytes(bytes(value)) => self.leave_out(key, TOO_LONG),
            None => self.keep(key, value.clone()),
        }
    }

    fn count(&mut self, key: &str, value: &Value) {
        match whole(value) {
            Some(n) => self.keep(key, Value::from(n)),
            None => self.leave_out(key, "it is no whole number"),
        }
    }

    fn numbers(&mut self) {
        let has = |name: &str| match self.out.get("type") {
            Some(Value::Array(names)) => names.iter().any(|one| one == name),
            Some(one) => one == name,
            None => name == "number",
        };
        let Bounds { kept, lost } = Bounds::of(self.fields, has("integer") && !has("number"));
        for (key, reason) in lost {
            self.leave_out(key, reason);
        }
        self.out.extend(kept);
    }

    fn pattern(&mut self, value: &Value) {
        let Some(pattern) = value.as_str() else {
            return self.leave_out("pattern", "it is no text");
        };
        if pattern.len() > MAX_PATTERN_BYTES {
            let n = pattern.len();
            let problem = format!("it has {n} bytes, and a grammar at most {MAX_PATTERN_BYTES}");
            return self.leave_out("pattern", problem);
        }
        if !self.all.budget.take_bytes(pattern.len()) {
            return self.leave_out("pattern", TOO_LONG);
        }
        let translated = translate(pattern);
        for reason in translated.lost {
            self.leave_out("pattern", reason);
        }
        if let Some(pattern) = translated.pattern {
            self.keep("pattern", Value::from(pattern));
        }
    }

    fn format(&mut self, value: &Value) {
        match value.as_str() {
            Some(format) if FORMATS.contains(&format) => self.keep("format", value.clone()),
            Some(format) if NUMBER_FORMATS.contains(&format) => {}
            Some(format) => {
                let shown: String = format.chars().take(40).collect();
                self.leave_out("format", format!("no grammar is known for {shown:?}"));
            }
            None => self.leave_out("format", "it is no text"),
        }
    }

    fn alternatives(&mut self, key: &str, value: &Value) {
        let Some(all) = value.as_array().filter(|all| !all.is_empty()) else {
            return match value.as_array() {
                Some(_) if key == "allOf" => {}
                _ => self.leave_out(key, "it lists no schema"),
            };
        };
        // Choices that are written out, each with a title, are as cheap as an `enum`.
        let is_literal = |one: &&Value| one.get("const").is_some() || one.get("enum").is_some();
        let n = all.iter().filter(|one| !is_literal(one)).count();
        if n > MAX_ALTERNATIVES {
            let problem = format!("it lists {n} schemas, and a grammar at most {MAX_ALTERNATIVES}");
            return self.leave_out(key, problem);
        }
        if all.len() > MAX_LITERALS {
            let n = all.len();
            let problem = format!("it lists {n} schemas, and a grammar at most {MAX_LITERALS}");
            return self.leave_out(key, problem);
        }
        let schemas = self.list(key, all);
        self.keep(key, schemas);
    }

    fn list(&mut self, key: &str, all: &[Value]) -> Value {
        let path = self.path.key(key);
        let all = all.iter().enumerate();
        all.map(|(i, one)| self.all.schema(one, &path.index(i), self.depth + 2)).collect()
    }

    fn properties(&mut self, value: &Value) {
        let Some(properties) = value.as_object() else {
            // PHP writes an empty object as a list.
            return if value.as_array().is_some_and(Vec::is_empty) {
                self.keep("properties", json!({}))
            } else {
                self.leave_out("properties", "it is no object")
            };
        };
        if properties.len() > MAX_PROPERTIES {
            let n = properties.len();
            return self.leave_out(
                "properties",
                format!("it has {n} properties, and a grammar at most {MAX_PROPERTIES}"),
            );
        }
        if !self.all.budget.take_properties(properties.len()) {
            return self.leave_out("properties", "too many objects have hundreds of properties");
        }
        if !self.all.budget.take_bytes(properties.keys().map(String::len).sum()) {
            return self.leave_out("properties", TOO_LONG);
        }
        let schemas = self.named("properties", properties);
        self.keep("properties", Value::Object(schemas));
    }

    fn named(&mut self, key: &str, all: &Map<String, Value>) -> Map<String, Value> {
        let path = self.path.key(key);
        let schemas = all.iter().map(|(name, one)| {
            (name.clone(), self.all.schema(one, &path.key(name), self.depth + 2))
        });
        schemas.collect()
    }

    fn pattern_properties(&mut self, value: &Value) {
        const KEY: &str = "patternProperties";
        let Some(patterns) = value.as_object() else {
            return self.leave_out(KEY, "it is no object");
        };
        if patterns.keys().map(String::len).sum::<usize>() > MAX_PATTERN_BYTES {
            return self.leave_out(KEY, TOO_LONG);
        }
        let mut kept = Map::new();
        for (pattern, schema) in self.named(KEY, patterns) {
            let translated = translate(&pattern);
            match (translated.pattern, translated.lost.first()) {
                (Some(pattern), None) => drop(kept.insert(pattern, schema)),
                (_, lost) => {
                    let path = self.path.key(KEY).key(&pattern);
                    self.all.leave_out(&path, lost.copied().unwrap_or("it is no pattern"));
                }
            }
        }
        self.keep(KEY, Value::Object(kept));
    }

    fn required(&mut self, value: &Value) {
        let Some(names) = value.as_array() else {
            // Draft 3 says of each property whether it is required.
            return match value {
                Value::Bool(false) => {}
                _ => self.leave_out("required", "it is no list"),
            };
        };
        let (mut kept, mut seen) = (Vec::new(), HashSet::new());
        for name in names {
            match name.as_str() {
                Some(text) if !seen.insert(text) => {}
                Some(_) => kept.push(name.clone()),
                None => self.leave_out("required", "it lists what is no name"),
            }
        }
        if kept.len() > MAX_PROPERTIES {
            let n = kept.len();
            let problem = format!("it lists {n} names, and a grammar at most {MAX_PROPERTIES}");
            return self.leave_out("required", problem);
        }
        if !kept.is_empty() {
            self.keep("required", Value::Array(kept));
        }
    }

    fn items(&mut self, value: &Value) {
        if let Value::Array(first) = value {
            // Before draft 2020-12 these are the first items, and others had a word of their own.
            self.first_items("items", first);
            let others = self.fields.get("additionalItems");
            if let Some(others) = others.filter(|_| self.out.contains_key("prefixItems")) {
                let inner = self.inner("additionalItems", others, 1);
                self.keep("items", inner);
            }
            return;
        }
        let inner = self.inner("items", value, 1);
        self.keep("items", inner);
    }

    fn prefix(&mut self, key: &str, value: &Value) {
        match value.as_array() {
            Some(first) => self.first_items(key, first),
            None => self.leave_out(key, "it is no list"),
        }
    }

    fn first_items(&mut self, key: &str, first: &[Value]) {
        if first.len() > MAX_ALTERNATIVES {
            let n = first.len();
            let problem = format!("it lists {n} items, and a grammar at most {MAX_ALTERNATIVES}");
            return self.leave_out(key, problem);
        }
        let schemas = self.list(key, first);
        self.keep("prefixItems", schemas);
    }

    /// What says something that no grammar can, unless it says nothing.
    fn not_enforced(&mut self, key: &str, value: &Value) {
        let says_nothing = match key {
            "uniqueItems" => value == &Value::Bool(false),
            "propertyNames" => {
                let mut fields = value.as_object().into_iter().flatten();
                value == &Value::Bool(true)
                    || fields.all(|(key, value)| key == "type" && value == "string")
            }
            "unevaluatedProperties" | "unevaluatedItems" => {
                value == &Value::Bool(true) || !self.has_joined_parts()
            }
            "if" => !["then", "else"].iter().any(|key| self.fields.contains_key(*key)),
            "minContains" | "maxContains" => !self.fields.contains_key("contains"),
            _ => value.as_object().is_some_and(Map::is_empty) && key.starts_with("depend"),
        };
        if !says_nothing {
            self.leave_out(key, "no grammar can hold to it");
        }
    }

    fn has_joined_parts(&self) -> bool {
        const JOINED: [&str; 7] =
            ["$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "if"];
        JOINED.iter().any(|key| self.fields.contains_key(*key))
    }

    /// Without parts that are joined what is not evaluated is what is additional.
    fn close_what_is_not_evaluated(&mut self) {
        if self.has_joined_parts() {
            return;
        }
        for (from, to) in
            [("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")]
        {
            if let (Some(value), false) = (self.fields.get(from), self.out.contains_key(to)) {
                let inner = self.inner(from, value, 1);
                self.keep(to, inner);
            }
        }
        // What was left out of the properties must not be forbidden with the others.
        for (key, others) in [
            ("properties", "additionalProperties"),
            ("patternProperties", "additionalProperties"),
            ("prefixItems", "items"),
        ] {
            let n_kept = self.out.get(key).map_or(0, size);
            let n_had = self.fields.get(key).map_or(0, size);
            if n_kept < n_had {
                self.keep(others, Value::Bool(true));
            }
        }
    }

    /// An object cannot have what is neither listed nor allowed.
    fn drop_impossible_requirements(&mut self) {
        let is_closed = self.out.get("additionalProperties") == Some(&Value::Bool(false));
        let may_match = self.out.get("patternProperties").is_some_and(|all| size(all) > 0);
        let properties = self.out.get("properties").and_then(Value::as_object);
        let can_be = |name: &Value| {
            let property = properties.and_then(|all| all.get(name.as_str()?));
            match property {
                Some(property) => property != &Value::Bool(false),
                None => !is_closed || may_match,
            }
        };
        let Some(names) = self.out.get("required").and_then(Value::as_array) else { return };
        let (kept, lost): (Vec<Value>, Vec<Value>) = names.iter().cloned().partition(can_be);
        for name in lost {
            self.leave_out("required", format!("the schema does not allow {name}"));
        }
        self.out.insert(String::from("required"), Value::Array(kept));
    }

    /// The library counts properties where all of them are required, or where at most one, or at
    /// least one, of those listed is there.
    fn property_counts(&mut self) {
        let mut counts = Vec::new();
        for key in ["minProperties", "maxProperties"] {
            let Some(value) = self.fields.get(key).filter(|value| !value.is_null()) else {
                continue;
            };
            match whole(value) {
                Some(n) => counts.push((key, n)),
                None => self.leave_out(key, "it is no whole number"),
            }
        }
        let required = self.out.get("required").and_then(Value::as_array);
        let n_required = required.map_or(0, Vec::len) as u64;
        let properties = self.out.get("properties").and_then(Value::as_object);
        let names: HashSet<&str> =
            required.into_iter().flatten().filter_map(Value::as_str).collect();
        let is_required = |name: &String| names.contains(name.as_str());
        let all_required = properties.is_none_or(|all| all.keys().all(is_required));
        let is_closed = self.out.get("additionalProperties") == Some(&Value::Bool(false))
            && !self.out.contains_key("patternProperties");
        let more = |n: u64| n.saturating_sub(n_required);
        let few = counts.iter().all(|(key, n)| match *key {
            "minProperties" => more(*n) <= 1,
            _ => more(*n) == 1,
        });
        for (key, n) in counts {
            if all_required || (is_closed && few) || (key == "minProperties" && more(n) == 0) {
                self.keep(key, Value::from(n));
            } else {
                self.leave_out(key, "optional properties cannot be counted");
            }
        }
    }
}

/// Adds null where OpenAPI's word for it is there.
fn nullable(fields: &Map<String, Value>, schema: Value) -> Value {
    let is_nullable = fields.get("nullable") == Some(&Value::Bool(true));
    let is_free = schema.as_object().is_some_and(Map::is_empty);
    if is_nullable && !is_free { json!({"anyOf": [schema, {"type": "null"}]}) } else { schema }
}

/// Puts what a root refers to in its place, so that it says which properties there are.
fn inline_root(root: &mut Value, definitions: &Map<String, Value>) {
    for _ in 0..definitions.len() {
        let Some(fields) = root.as_object_mut() else { return };
        let name = fields.get("$ref").and_then(Value::as_str);
        let name = name.and_then(|name| name.strip_prefix("#/$defs/"));
        let Some(target) = name.and_then(|name| definitions.get(name)) else { return };
        let target = target.clone();
        fields.remove("$ref");
        let own = mem::take(fields);
        if own.is_empty() { *root = target } else { *root = one("allOf", json!([target, own])) }
    }
}
