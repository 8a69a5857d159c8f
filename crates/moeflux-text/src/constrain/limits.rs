//! Schemas of clients, checked before the grammar library reads them.
//!
//! The library bounds the work that a schema makes, and refuses references that lead nowhere. It
//! follows schemas by recursion, though: into a schema, and from a reference to its target, each
//! target once. So the depth that it can reach is bounded here, and compiling gets a stack that
//! suffices for it.

use std::collections::HashSet;

use llguidance::api::ParserLimits;
use serde_json::Value;

use super::lark::{AnswerShape, Grammar};
use super::rules::walk;

/// Levels of JSON that compiling may be inside of.
const MAX_LEVELS: usize = 8192;
/// Properties of one object: thousands take the library many seconds.
const MAX_PROPERTIES: usize = 1024;
/// Different references of one schema.
const MAX_TARGETS: usize = 1024;
/// 32 KiB for each of [`MAX_LEVELS`].
pub(super) const STACK_BYTES: usize = 256 << 20;
/// Values in the schemas of one request.
const MAX_VALUES: usize = 1 << 20;

/// Work of the library for all regular expressions of a grammar, in its own unit: a million take
/// seconds where texts are long.
const MAX_LEXER_FUEL: u64 = 300_000;
/// Symbols in the rules of a grammar. The library has numbers for 65,000 different ones.
const MAX_SYMBOLS: usize = 150_000;

/// Bounds what the library does for one grammar.
pub(super) fn bound(limits: &mut ParserLimits) {
    limits.verbose_errors = false;
    limits.initial_lexer_fuel = MAX_LEXER_FUEL;
    limits.max_grammar_size = MAX_SYMBOLS;
}

/// Checks all schemas of a grammar.
///
/// # Errors
/// Says what is too large or too deep.
pub(super) fn check(grammar: &Grammar) -> Result<(), String> {
    let shape = match &grammar.shape {
        AnswerShape::Json(schema) => Some(schema),
        AnswerShape::Text => None,
    };
    let tools = grammar.tools.iter().map(|tool| &tool["function"]["parameters"]);
    let mut n_values = 0;
    for schema in shape.into_iter().chain(tools) {
        let size = Size::of(schema);
        if size.n_properties > MAX_PROPERTIES {
            return Err(format!(
                "an object of the schema has {} properties, at most {MAX_PROPERTIES} are allowed",
                size.n_properties
            ));
        }
        if size.levels > MAX_LEVELS {
            return Err(format!(
                "the schema has more than {MAX_TARGETS} different references, or they lead more \
                 than {MAX_LEVELS} levels deep"
            ));
        }
        n_values += size.n_values;
        if n_values > MAX_VALUES {
            return Err(format!("the schemas have more than {MAX_VALUES} values"));
        }
    }
    Ok(())
}

/// How much of a schema there is to follow.
struct Size {
    n_values: usize,
    /// Of the object that has most.
    n_properties: usize,
    /// Depth of the schema, and of the targets of its references, each once.
    levels: usize,
}

impl Size {
    fn of(schema: &Value) -> Size {
        let mut targets = HashSet::new();
        let mut n_properties = 0;
        let (n_values, depth) = walk(schema, &mut |fields| {
            targets.extend(fields.get("$ref").and_then(Value::as_str).map(str::to_owned));
            let properties = fields.get("properties").and_then(Value::as_object);
            n_properties = n_properties.max(properties.map_or(0, serde_json::Map::len));
        });
        let depth_of = |target: &String| {
            let pointer = target.strip_prefix('#').map(unescaped);
            // What is no pointer may lead to all of the schema.
            let found = pointer.and_then(|pointer| schema.pointer(&pointer)).unwrap_or(schema);
            walk(found, &mut |_| {}).1
        };
        // Where most targets hold each other, walking through all of them would take too long.
        let levels = match targets.len() {
            n if n > MAX_TARGETS => MAX_LEVELS + 1,
            _ => targets.iter().map(depth_of).sum(),
        };
        Size { n_values, n_properties, levels: depth + levels }
    }
}

/// A fragment of a URI without its percent signs.
fn unescaped(fragment: &str) -> String {
    fragment.replace("%25", "%").replace("%7E", "~").replace("%7e", "~")
}
