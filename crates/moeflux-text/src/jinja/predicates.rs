//! The tests after `is` whose answers differ from minijinja's.

use minijinja::value::{ObjectRepr, Value, ValueKind};
use minijinja::{Environment, Error};

use super::args::invalid;
use super::python::is_macro;

pub(super) fn add(env: &mut Environment<'_>) {
    env.add_test("iterable", is_iterable);
    env.add_test("sequence", is_sequence);
    env.add_test("callable", is_callable);
    env.add_test("divisibleby", is_divisible_by);
}

/// `iter(value)` works.
fn is_iterable(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Undefined
            | ValueKind::String
            | ValueKind::Seq
            | ValueKind::Iterable
            | ValueKind::Map
    ) && !is_macro(value)
}

/// `len(value)` works, and values have subscripts.
fn is_sequence(value: &Value) -> bool {
    match value.kind() {
        ValueKind::Undefined | ValueKind::String | ValueKind::Seq => true,
        ValueKind::Map => !is_macro(value),
        // Parts of lists, and ranges; what has no length is a generator.
        ValueKind::Iterable => value.len().is_some(),
        _ => false,
    }
}

fn is_callable(value: &Value) -> bool {
    let is_plain =
        |value: &Value| value.as_object().is_some_and(|object| object.repr() == ObjectRepr::Plain);
    value.is_undefined() || is_plain(value) || is_macro(value)
}

fn is_divisible_by(value: &Value, divisor: &Value) -> Result<bool, Error> {
    let remainder = super::operators::modulo(value, divisor)?;
    match remainder.kind() {
        ValueKind::Number => Ok(f64::try_from(remainder)? == 0.0),
        _ => Err(invalid("divisibleby takes numbers")),
    }
}
