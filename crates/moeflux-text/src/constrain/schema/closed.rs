//! Objects that list their properties have no others, unless their schema asks for others.
//!
//! JSON Schema allows any further property where `additionalProperties` is missing. Generators of schemas
//! leave it out and mean the listed ones, and a model that may invent properties does.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

/// Properties of one object at most, those of the parts that it joins included.
const MAX_NAMES: usize = 1024;
/// Levels of schemas that are looked at.
const MAX_DEPTH: usize = 128;
/// Schemas at most that are looked at for what holds in one place.
const MAX_PARTS: usize = 4096;
/// Schemas at most that are looked at for all of a request's schema: a larger one stays as it is.
const MAX_VISITED: usize = 100_000;

/// What joins schemas into one.
const JOINING: [&str; 3] = ["allOf", "anyOf", "oneOf"];

/// Names of properties, by the definition in whose place several schemas hold together.
type Shared = HashMap<String, HashSet<String>>;

/// What several schemas that hold together say of an object.
#[derive(Default)]
struct Joined {
    names: Vec<String>,
    /// Names that more than one of them describe.
    shared: HashSet<String>,
    lists_properties: bool,
    /// Whether one of them allows other properties, or all that match a pattern.
    is_open: bool,
    seen: HashSet<String>,
    /// Definitions that were read.
    read: HashSet<String>,
    n_parts: usize,
}

/// Closes the objects of a schema and of its definitions.
pub(in crate::constrain) fn close(root: &mut Value) {
    let definitions = root.get("$defs").and_then(Value::as_object).cloned().unwrap_or_default();
    let mut parts = Parts { definitions: &definitions, shared: Shared::new(), n_visited: 0 };
    parts.find(root, None, 0);
    for definition in definitions.values() {
        parts.find(definition, None, 0);
    }
    let Parts { shared, n_visited, .. } = parts;
    if n_visited > MAX_VISITED {
        return;
    }
    let closer = Closer { definitions: &definitions, parts: &shared };
    closer.close(root, None);
    let own = root.get_mut("$defs").and_then(Value::as_object_mut);
    for (name, definition) in own.into_iter().flatten() {
        closer.close(definition, shared.get(name));
    }
}

/// Whether a schema's keywords hold an object to more than one list of properties.
fn is_joined(fields: &Map<String, Value>) -> bool {
    let n_all = fields.get("allOf").and_then(Value::as_array).map_or(0, Vec::len);
    let one = |key: &str| usize::from(fields.contains_key(key));
    n_all + one("anyOf") + one("oneOf") + one("$ref") + one("properties") > 1
}

/// The definition that a schema is, or is among others.
fn definition_of(fields: &Map<String, Value>) -> Option<&str> {
    fields.get("$ref")?.as_str()?.strip_prefix("#/$defs/")
}

/// The schemas that hold in the same place as one with these fields.
fn same_place(fields: &Map<String, Value>) -> impl Iterator<Item = &Value> {
    JOINING.iter().filter_map(|key| fields.get(*key)?.as_array()).flatten()
}

impl Joined {
    fn of(schema: &Value, definitions: &Map<String, Value>) -> Joined {
        let mut joined = Joined::default();
        joined.add(schema, definitions, 0);
        joined
    }

    fn add(&mut self, schema: &Value, definitions: &Map<String, Value>, depth: usize) {
        let Some(fields) = schema.as_object() else { return };
        self.n_parts += 1;
        if depth > MAX_DEPTH || self.names.len() > MAX_NAMES || self.n_parts > MAX_PARTS {
            self.is_open = true;
            return;
        }
        let others = fields.get("additionalProperties");
        self.is_open |= others.is_some_and(|others| *others != Value::Bool(false));
        self.is_open |= fields.contains_key("patternProperties");
        let properties = fields.get("properties").and_then(Value::as_object);
        self.lists_properties |= properties.is_some();
        for name in properties.into_iter().flat_map(Map::keys) {
            if self.seen.insert(name.clone()) {
                self.names.push(name.clone());
            } else {
                self.shared.insert(name.clone());
            }
        }
        let name = definition_of(fields).filter(|name| self.read.insert((*name).to_owned()));
        if let Some(definition) = name.and_then(|name| definitions.get(name)) {
            self.add(definition, definitions, depth + 1);
        }
        for part in same_place(fields) {
            self.add(part, definitions, depth + 1);
        }
    }
}

/// Finds the definitions that hold together with other schemas.
struct Parts<'a> {
    definitions: &'a Map<String, Value>,
    shared: Shared,
    n_visited: usize,
}

impl Parts<'_> {
    /// `around` has the shared names of the schemas that hold together with this one.
    fn find(&mut self, schema: &Value, around: Option<&HashSet<String>>, depth: usize) {
        self.n_visited += 1;
        let is_near = depth <= MAX_DEPTH && self.n_visited <= MAX_VISITED;
        let Some(fields) = schema.as_object().filter(|_| is_near) else { return };
        let own = around.is_none() && is_joined(fields);
        let own = own.then(|| {
            let joined = Joined::of(schema, self.definitions);
            self.n_visited += joined.n_parts;
            joined.shared
        });
        let around = around.or(own.as_ref());
        if let (Some(name), Some(names)) = (definition_of(fields), around) {
            let known = self.shared.get(name);
            if known.is_none_or(|known| !names.is_subset(known)) {
                self.shared.entry(name.to_owned()).or_default().extend(names.iter().cloned());
                if let Some(definition) = self.definitions.get(name) {
                    self.find(definition, Some(names), depth + 1);
                }
            }
        }
        for part in same_place(fields) {
            self.find(part, around, depth + 1);
        }
        let inner = ["properties", "patternProperties"].map(|key| fields.get(key)?.as_object());
        let inner = inner.into_iter().flatten().flat_map(Map::values);
        let lists = fields.get("prefixItems").and_then(Value::as_array).into_iter().flatten();
        let others =
            ["items", "additionalProperties"].into_iter().filter_map(|key| fields.get(key));
        for one in inner.chain(lists).chain(others) {
            self.find(one, None, depth + 1);
        }
    }
}

struct Closer<'a> {
    definitions: &'a Map<String, Value>,
    /// Definitions that hold together with other schemas.
    parts: &'a Shared,
}

impl Closer<'_> {
    /// `around` has the shared names of the schemas that hold together with this one: the schema that
    /// joins them closes all of them.
    fn close(&self, schema: &mut Value, around: Option<&HashSet<String>>) {
        let Some(fields) = schema.as_object() else { return };
        let has_part = definition_of(fields).is_some_and(|name| self.parts.contains_key(name));
        let own = around.is_none() && (is_joined(fields) || has_part);
        let own = own.then(|| Joined::of(schema, self.definitions));
        let shared = around.cloned().or_else(|| own.as_ref().map(|joined| joined.shared.clone()));
        match (own, around) {
            (Some(joined), _) => close_joined(schema, joined),
            (None, None) => close_alone(schema),
            (None, Some(_)) => {}
        }
        self.close_inside(schema, shared.as_ref());
    }

    /// Closes the schemas that a schema holds.
    fn close_inside(&self, schema: &mut Value, shared: Option<&HashSet<String>>) {
        for (key, value) in schema.as_object_mut().into_iter().flatten() {
            match (key.as_str(), value) {
                ("allOf" | "anyOf" | "oneOf", Value::Array(parts)) => {
                    parts.iter_mut().for_each(|part| self.close(part, shared));
                }
                ("properties", Value::Object(all)) => {
                    // What several schemas say of one property holds together, too: it stays as it is.
                    let is_shared = |name: &String| shared.is_some_and(|all| all.contains(name));
                    let own = all.iter_mut().filter(|(name, _)| !is_shared(name));
                    own.for_each(|(_, one)| self.close(one, None));
                }
                ("patternProperties", Value::Object(all)) => {
                    all.values_mut().for_each(|one| self.close(one, None));
                }
                ("prefixItems", Value::Array(all)) => {
                    all.iter_mut().for_each(|one| self.close(one, None));
                }
                ("items" | "additionalProperties", one) => self.close(one, None),
                _ => {}
            }
        }
    }
}

/// Closes an object that no other schema describes.
fn close_alone(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else { return };
    if fields.contains_key("properties") && !fields.contains_key("additionalProperties") {
        forbid_others(fields, Vec::new());
    }
}

/// Closes an object that several schemas describe: to the properties of all of them.
fn close_joined(schema: &mut Value, joined: Joined) {
    let Joined { names, lists_properties, is_open, .. } = joined;
    let Some(fields) = schema.as_object_mut() else { return };
    if lists_properties && !is_open && !fields.contains_key("additionalProperties") {
        forbid_others(fields, names);
    }
}

/// Allows the listed properties, these names and those that are required.
fn forbid_others(fields: &mut Map<String, Value>, names: Vec<String>) {
    let required = fields.get("required").and_then(Value::as_array).into_iter().flatten();
    let required: Vec<String> = required.filter_map(Value::as_str).map(str::to_owned).collect();
    let listed = fields.entry("properties").or_insert_with(|| json!({}));
    let Some(listed) = listed.as_object_mut() else { return };
    for name in names.into_iter().chain(required) {
        listed.entry(name).or_insert_with(|| json!({}));
    }
    fields.insert(String::from("additionalProperties"), Value::Bool(false));
}
