//! JSON schemas of clients, rewritten to what the grammar library compiles.
//!
//! Schemas come from generators of many languages and say things that no grammar of a bounded size
//! can hold a model to: look-around in patterns, conditions, unique items, bounds that no integer
//! of 64 bits has. [`simplify`] takes any JSON value and returns a schema of known keywords whose
//! references all lead into its own `$defs`, and the list of parts that it left out. What the
//! result refuses, the original refuses too: leaving a part out only ever allows more.
//!
//! Callers decide what a part that was left out means. Tools are lenient: the model is trusted with
//! it. A format that a client asks answers to have is strict: the request is refused.

mod ends;
mod keywords;
mod numbers;
mod path;
mod pattern;
mod references;

use std::collections::HashMap;

use serde_json::{Map, Value, json};

pub(super) use self::keywords::{children_mut, remove_with_dependents};
pub(super) use self::path::Path;

/// A part of a schema that was left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LeftOut {
    /// Where the part is in the schema, such as `properties.to.items.pattern`; empty for all of it.
    pub(super) path: String,
    /// Why, as half a sentence.
    pub(super) reason: String,
}

/// A schema that the library compiles, as far as its keywords tell.
#[derive(Clone, Debug)]
pub(super) struct Simplified {
    pub(super) schema: Value,
    pub(super) left_out: Vec<LeftOut>,
    /// Where the definitions of `schema` were in the original.
    pub(super) places: HashMap<String, Path>,
}

/// The schema of arguments that may be anything.
pub(super) fn any_arguments() -> Value {
    json!({"type": "object", "additionalProperties": true})
}

/// Rewrites a schema.
pub(super) fn simplify(schema: &Value) -> Simplified {
    keywords::Simplifier::new(schema).run()
}

/// Rewrites the schema of a tool's arguments, which are always an object.
pub(super) fn simplify_arguments(schema: &Value) -> Simplified {
    let no_arguments = || json!({"type": "object", "properties": {}});
    let all = |schema: Value, reason: Option<&str>| Simplified {
        schema,
        left_out: reason
            .map(|reason| LeftOut { path: String::new(), reason: reason.to_owned() })
            .into_iter()
            .collect(),
        places: HashMap::new(),
    };
    match schema {
        Value::Null => return all(no_arguments(), None),
        Value::Bool(true) => return all(any_arguments(), None),
        Value::Bool(false) => return all(any_arguments(), Some("it allows no arguments at all")),
        Value::Object(_) => {}
        _ => return all(any_arguments(), Some("it is neither an object nor true or false")),
    }
    let Simplified { mut schema, mut left_out, places } = simplify(schema);
    let Some(fields) = schema.as_object_mut() else {
        return all(any_arguments(), Some("it allows no arguments at all"));
    };
    let allows_objects = match fields.get("type") {
        None => true,
        Some(Value::Array(names)) => names.iter().any(|name| name == "object"),
        Some(name) => name == "object",
    };
    if !allows_objects {
        left_out.push(LeftOut {
            path: String::from("type"),
            reason: String::from("arguments are always an object"),
        });
        return Simplified { schema: any_arguments(), left_out, places };
    }
    if fields.contains_key("type") {
        fields.insert(String::from("type"), Value::from("object"));
    }
    Simplified { schema, left_out, places }
}

/// A schema's object with one keyword.
fn one(key: &str, value: Value) -> Value {
    Value::Object(Map::from_iter([(key.to_owned(), value)]))
}
