//! What is left of a schema.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::path::Path;

/// A part of a schema that was left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::constrain) struct LeftOut {
    /// Where the part is in the schema, such as `properties.to.items.pattern`; empty for all of it.
    pub(in crate::constrain) path: String,
    /// Why, as half a sentence.
    pub(in crate::constrain) reason: String,
}

/// A schema that the library compiles, as far as its keywords tell.
#[derive(Clone, Debug)]
pub(in crate::constrain) struct Simplified {
    pub(in crate::constrain) schema: Value,
    pub(in crate::constrain) left_out: Vec<LeftOut>,
    /// Where the definitions of `schema` were in the original.
    pub(in crate::constrain) places: HashMap<String, Path>,
}

/// A schema's object with one keyword.
pub(super) fn one(key: &str, value: Value) -> Value {
    Value::Object(Map::from_iter([(key.to_owned(), value)]))
}
