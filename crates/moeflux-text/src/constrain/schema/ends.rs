//! References that never come to an end: a definition whose every value contains another value of
//! the same definition has no value at all, and a grammar for it leads nowhere.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use super::path::Path;
use super::simplified::LeftOut;
use super::walk::children_mut;
use crate::constrain::rules::targets;

/// Takes the references out that lead to definitions without any value.
pub(super) fn cut(
    root: &mut Value,
    definitions: &mut Map<String, Value>,
    places: &HashMap<String, Path>,
) -> Vec<LeftOut> {
    let mut left_out = Vec::new();
    let names: Vec<String> = definitions.keys().cloned().collect();
    let users = users(definitions);
    let mut ending = HashSet::new();
    add_ending(definitions, &users, names.clone(), &mut ending);
    for name in names {
        let (Some(definition), Some(place)) = (definitions.get_mut(&name), places.get(&name))
        else {
            continue;
        };
        if !ending.contains(&name) {
            cut_in(definition, place, &ending, &mut left_out);
            add_ending(definitions, &users, vec![name], &mut ending);
        }
    }
    cut_in(root, &Path::default(), &ending, &mut left_out);
    left_out
}

/// Which definitions refer to each of the definitions.
fn users(definitions: &Map<String, Value>) -> HashMap<String, Vec<String>> {
    let mut users: HashMap<String, Vec<String>> = HashMap::new();
    for (name, definition) in definitions {
        let targets: HashSet<String> = targets(definition).into_iter().collect();
        for target in targets {
            users.entry(target).or_default().push(name.clone());
        }
    }
    users
}

/// Adds to `ending` which of the definitions `waiting` have values, and of those that refer to
/// them, and so on.
fn add_ending(
    definitions: &Map<String, Value>,
    users: &HashMap<String, Vec<String>>,
    mut waiting: Vec<String>,
    ending: &mut HashSet<String>,
) {
    while let Some(name) = waiting.pop() {
        let definition = definitions.get(&name).filter(|_| !ending.contains(&name));
        if definition.is_some_and(|definition| ends(definition, ending)) {
            waiting.extend(users.get(&name).into_iter().flatten().cloned());
            ending.insert(name);
        }
    }
}

fn cut_in(schema: &mut Value, path: &Path, ending: &HashSet<String>, left_out: &mut Vec<LeftOut>) {
    if target(schema).is_some_and(|name| !ending.contains(name)) {
        let reason = String::from("it contains itself without an end");
        left_out.push(LeftOut { path: path.key("$ref").shown(), reason });
        schema.as_object_mut().map(|fields| fields.remove("$ref"));
    }
    for (child, path) in children_mut(schema, path) {
        cut_in(child, &path, ending, left_out);
    }
}

fn target(schema: &Value) -> Option<&str> {
    schema.get("$ref")?.as_str()?.strip_prefix("#/$defs/")
}

/// Whether there is a value that needs no reference but to definitions that have one.
fn ends(schema: &Value, ending: &HashSet<String>) -> bool {
    let Some(fields) = schema.as_object() else { return true };
    if target(schema).is_some_and(|name| !ending.contains(name)) {
        return false;
    }
    let list = |key: &str| fields.get(key).and_then(Value::as_array);
    if list("allOf").is_some_and(|all| !all.iter().all(|one| ends(one, ending))) {
        return false;
    }
    for key in ["anyOf", "oneOf"] {
        if list(key).is_some_and(|all| !all.iter().any(|one| ends(one, ending))) {
            return false;
        }
    }
    let may_be = |name: &str| match fields.get("type") {
        None => true,
        Some(Value::Array(names)) => names.iter().any(|one| one == name),
        Some(one) => one == name,
    };
    if ["null", "boolean", "integer", "number", "string"].iter().any(|name| may_be(name)) {
        return true;
    }
    (may_be("object") && object_ends(fields, ending))
        || (may_be("array") && array_ends(fields, ending))
}

fn object_ends(fields: &Map<String, Value>, ending: &HashSet<String>) -> bool {
    let required = fields.get("required").and_then(Value::as_array);
    required.into_iter().flatten().filter_map(Value::as_str).all(|name| {
        let property = fields.get("properties").and_then(|all| all.get(name));
        property.is_none_or(|property| ends(property, ending))
    })
}

fn array_ends(fields: &Map<String, Value>, ending: &HashSet<String>) -> bool {
    let n = fields.get("minItems").and_then(Value::as_u64).unwrap_or(0) as usize;
    let first = fields.get("prefixItems").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let free = json!({});
    let others = fields.get("items").unwrap_or(&free);
    first.iter().take(n).all(|item| ends(item, ending))
        && (n <= first.len() || ends(others, ending))
}
