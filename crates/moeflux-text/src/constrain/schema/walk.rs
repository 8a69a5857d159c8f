//! Walking through schemas.

use serde_json::Value;

use crate::constrain::schema::Path;

/// The schemas that a schema holds, with their places.
pub(in crate::constrain) fn children_mut<'a>(
    schema: &'a mut Value,
    path: &Path,
) -> Vec<(&'a mut Value, Path)> {
    let mut children = Vec::new();
    for (key, value) in schema.as_object_mut().into_iter().flatten() {
        let path = path.key(key);
        match (key.as_str(), value) {
            ("properties" | "patternProperties", Value::Object(all)) => {
                children.extend(all.iter_mut().map(|(name, one)| (one, path.key(name))));
            }
            ("allOf" | "anyOf" | "oneOf" | "prefixItems", Value::Array(all)) => {
                let all = all.iter_mut().enumerate();
                children.extend(all.map(|(i, one)| (one, path.index(i))));
            }
            ("items" | "additionalProperties", one) => children.push((one, path)),
            _ => {}
        }
    }
    children
}

/// Takes a keyword out, and what would forbid what it allowed.
pub(in crate::constrain) fn remove_with_dependents(schema: &mut Value, key: &str) -> bool {
    let Some(fields) = schema.as_object_mut() else { return false };
    let was_there = fields.remove(key).is_some();
    if was_there {
        match key {
            "properties" | "patternProperties" => {
                fields.insert(String::from("additionalProperties"), Value::Bool(true));
            }
            "prefixItems" => drop(fields.remove("items")),
            _ => {}
        }
    }
    was_there
}
