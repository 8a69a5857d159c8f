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

mod budget;
mod closed;
mod ends;
mod joined;
mod keywords;
mod numbers;
mod path;
mod pattern;
mod references;
mod simplified;
mod values;
mod walk;

use std::collections::HashMap;

use serde_json::{Value, json};

pub(super) use self::budget::Budget;
pub(super) use self::closed::close;
pub(super) use self::path::Path;
pub(super) use self::simplified::{LeftOut, Simplified};
pub(super) use self::walk::{children_mut, remove_with_dependents};

/// The schema of arguments that may be anything.
pub(super) fn any_arguments() -> Value {
    json!({"type": "object", "additionalProperties": true})
}

/// Rewrites a schema, as far as the budget goes.
pub(super) fn simplify(schema: &Value, budget: &mut Budget) -> Simplified {
    keywords::Simplifier::new(schema, budget).run()
}

/// Rewrites the schema of a tool's arguments, which are always an object.
pub(super) fn simplify_arguments(schema: &Value, budget: &mut Budget) -> Simplified {
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
    let Simplified { mut schema, mut left_out, places } = simplify(schema, budget);
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
