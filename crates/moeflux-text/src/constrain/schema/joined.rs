//! Patterns that hold for one text together, as those of the parts of `allOf` do: the library tells
//! what all of them allow by the product of their states, which soon takes minutes.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::path::Path;
use super::simplified::LeftOut;
use super::walk::{children_mut, remove_with_dependents};

/// Patterns of one text at most.
const MAX_PATTERNS: usize = 4;
/// Divisors of one number at most: the library multiplies them without looking for overflow.
const MAX_DIVISORS: usize = 1;

/// What may join several schemas, the cheapest to lose first.
const JOINING: [&str; 5] = ["allOf", "patternProperties", "anyOf", "oneOf", "$ref"];

/// The most that one value within a schema is held to, at any depth.
#[derive(Clone, Copy, Default)]
struct Weight {
    n_patterns: usize,
    n_divisors: usize,
}

impl Weight {
    fn add(self, other: Weight) -> Weight {
        Weight {
            n_patterns: self.n_patterns.saturating_add(other.n_patterns),
            n_divisors: self.n_divisors.saturating_add(other.n_divisors),
        }
    }

    fn max(self, other: Weight) -> Weight {
        Weight {
            n_patterns: self.n_patterns.max(other.n_patterns),
            n_divisors: self.n_divisors.max(other.n_divisors),
        }
    }

    fn is_too_large(self) -> bool {
        self.n_patterns > MAX_PATTERNS || self.n_divisors > MAX_DIVISORS
    }
}

/// Takes out what joins too many patterns.
pub(super) fn cut(
    root: &mut Value,
    definitions: &mut Map<String, Value>,
    places: &HashMap<String, Path>,
) -> Vec<LeftOut> {
    let mut weights = Weights { definitions, known: HashMap::new() };
    let names: Vec<String> = weights.definitions.keys().cloned().collect();
    for name in &names {
        weights.of_definition(name);
    }
    let known = weights.known;
    let mut left_out = Vec::new();
    for (name, definition) in definitions.iter_mut() {
        let place = places.get(name).cloned().unwrap_or_default();
        cut_in(definition, &place, &known, &mut left_out);
    }
    cut_in(root, &Path::default(), &known, &mut left_out);
    left_out
}

/// Weights of definitions, each found once.
struct Weights<'a> {
    definitions: &'a Map<String, Value>,
    known: HashMap<String, Weight>,
}

impl Weights<'_> {
    fn of_definition(&mut self, name: &str) -> Weight {
        if let Some(weight) = self.known.get(name) {
            return *weight;
        }
        // What leads back here adds nothing at the same place.
        self.known.insert(name.to_owned(), Weight::default());
        let Some(definition) = self.definitions.get(name) else { return Weight::default() };
        let weight = weight(definition, &mut |name| self.of_definition(name));
        // One that is too large is cut by itself, and where others join it.
        self.known.insert(name.to_owned(), weight);
        weight
    }
}

fn weight(schema: &Value, of_definition: &mut dyn FnMut(&str) -> Weight) -> Weight {
    let Some(fields) = schema.as_object() else { return Weight::default() };
    let is_there = |key: &str| usize::from(fields.contains_key(key));
    let mut joined = Weight {
        n_patterns: is_there("pattern") + is_there("format"),
        n_divisors: is_there("multipleOf"),
    };
    let mut inside = Weight::default();
    for (key, value) in fields {
        match (key.as_str(), value) {
            ("properties", Value::Object(all)) => {
                for one in all.values() {
                    inside = inside.max(weight(one, of_definition));
                }
            }
            ("patternProperties", Value::Object(all)) => {
                for one in all.values() {
                    joined = joined.add(weight(one, of_definition));
                }
            }
            ("prefixItems", Value::Array(all)) => {
                for one in all {
                    inside = inside.max(weight(one, of_definition));
                }
            }
            ("items" | "additionalProperties", one) => {
                inside = inside.max(weight(one, of_definition));
            }
            ("allOf", Value::Array(all)) => {
                for one in all {
                    joined = joined.add(weight(one, of_definition));
                }
            }
            ("anyOf" | "oneOf", Value::Array(all)) => {
                let most = all.iter().map(|one| weight(one, of_definition));
                joined = joined.add(most.fold(Weight::default(), Weight::max));
            }
            ("$ref", Value::String(target)) => {
                if let Some(name) = target.strip_prefix("#/$defs/") {
                    joined = joined.add(of_definition(name));
                }
            }
            _ => {}
        }
    }
    joined.max(inside)
}

fn cut_in(
    schema: &mut Value,
    path: &Path,
    known: &HashMap<String, Weight>,
    left_out: &mut Vec<LeftOut>,
) {
    for (child, path) in children_mut(schema, path) {
        cut_in(child, &path, known, left_out);
    }
    for key in JOINING {
        if !weigh(schema, known).is_too_large() {
            return;
        }
        if remove_with_dependents(schema, key) {
            let reason = format!(
                "it holds a value to more than {MAX_PATTERNS} patterns or {MAX_DIVISORS} divisor"
            );
            left_out.push(LeftOut { path: path.key(key).shown(), reason });
        }
    }
}

fn weigh(schema: &Value, known: &HashMap<String, Weight>) -> Weight {
    let capped = |name: &str| {
        let weight = known.get(name).copied().unwrap_or_default();
        // Definitions are cut to what is allowed.
        Weight {
            n_patterns: weight.n_patterns.min(MAX_PATTERNS),
            n_divisors: weight.n_divisors.min(MAX_DIVISORS),
        }
    };
    weight(schema, &mut { capped })
}
