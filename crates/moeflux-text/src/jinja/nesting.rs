//! Bounds on how deeply values may nest, since minijinja compares and drops them recursively.
//!
//! A template can nest its data further with every round of a loop, and a namespace can be made to
//! contain itself. Expressions are bounded by the parser, loops and macros by minijinja's recursion
//! limit, so that what is left are assignments: [`super::source`] passes what they assign through
//! [`assigned`].

use minijinja::Error;
use minijinja::value::{Tuple, Value, ValueKind};

use super::args::invalid;
use super::python::{MAX_DEPTH, MAX_ITEMS, is_macro};

/// The filter that assignments apply: refuses a value that is nested too deeply. `in_namespace` says
/// that a field of a namespace is assigned, whose value outlives the round of a loop: this is data
/// only, and what minijinja would compute when it is read (slices, for one) is computed here.
pub(super) fn assigned(value: Value, in_namespace: bool) -> Result<Value, Error> {
    let is_nested = |kind| {
        use ValueKind::{Iterable, Map, Plain, Seq};
        matches!(kind, Seq | Iterable | Map | Plain)
    };
    if !is_nested(value.kind()) {
        return Ok(value);
    }
    let namespace = type_name(&minijinja::functions::namespace(None)?);
    let dict = type_name(&Value::from_pairs([("", "")]));
    let mut walk = Walk { in_namespace, namespace, dict, n_values: 0 };
    let rebuilt = walk.visit(&value, 0)?;
    Ok(rebuilt.unwrap_or(value))
}

/// The name of the type of an object. minijinja's own types are private.
fn type_name(value: &Value) -> &'static str {
    value.as_object().map_or("", |object| object.type_name())
}

/// One value that is looked through.
struct Walk {
    in_namespace: bool,
    /// The types of namespaces and of ordinary dicts.
    namespace: &'static str,
    dict: &'static str,
    /// Values seen so far. A list that contains another one twice counts its items twice.
    n_values: usize,
}

impl Walk {
    /// The value as it is to be kept, or nothing where that is the value itself.
    fn visit(&mut self, value: &Value, depth: usize) -> Result<Option<Value>, Error> {
        self.n_values += 1;
        if self.n_values > MAX_ITEMS {
            return Err(invalid(format!("a variable of more than {MAX_ITEMS} values")));
        }
        if depth > MAX_DEPTH {
            return Err(invalid(format!("a variable is nested in more than {MAX_DEPTH} levels")));
        }
        match value.kind() {
            ValueKind::Seq | ValueKind::Iterable => self.visit_list(value, depth),
            ValueKind::Map if !self.is_opaque(value) => self.visit_dict(value, depth),
            ValueKind::Map | ValueKind::Plain if self.in_namespace => Err(invalid(
                "a field of a namespace is text, a number, a list or a dict; it cannot be a \
                 namespace, a macro or another object",
            )),
            _ => Ok(None),
        }
    }

    /// Whether a map is not data: it may lead back to itself.
    fn is_opaque(&self, value: &Value) -> bool {
        type_name(value) == self.namespace || is_macro(value)
    }

    fn visit_list(&mut self, value: &Value, depth: usize) -> Result<Option<Value>, Error> {
        let is_tuple = value.is_tuple();
        let is_plain = is_tuple || value.downcast_object_ref::<Vec<Value>>().is_some();
        let mut changed = self.in_namespace && !is_plain;
        let mut items = Vec::new();
        for item in value.try_iter()?.checked() {
            let item = item?;
            let rebuilt = self.visit(&item, depth + 1)?;
            changed |= rebuilt.is_some();
            if self.in_namespace {
                items.push(rebuilt.unwrap_or(item));
            }
        }
        Ok(changed.then(|| if is_tuple { Value::from(Tuple::from(items)) } else { items.into() }))
    }

    fn visit_dict(&mut self, value: &Value, depth: usize) -> Result<Option<Value>, Error> {
        // `loop` is a map, too, and refers to what it runs over.
        let mut changed = self.in_namespace && type_name(value) != self.dict;
        let mut fields = Vec::new();
        for key in value.try_iter()?.checked() {
            let key = key?;
            // A tuple can be a key.
            self.visit(&key, depth + 1)?;
            let item = value.get_item(&key)?;
            let rebuilt = self.visit(&item, depth + 1)?;
            changed |= rebuilt.is_some();
            if self.in_namespace {
                fields.push((key, rebuilt.unwrap_or(item)));
            }
        }
        Ok(changed.then(|| Value::from_pairs(fields)))
    }
}
