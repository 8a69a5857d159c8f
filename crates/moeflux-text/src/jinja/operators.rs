//! Operators as Python has them.

use minijinja::Error;
use minijinja::value::{Rest, Tuple, Value, ValueKind};

use super::format::percent_format;
use super::python::{check_len, is_whole, write_text};
use crate::jinja::args::invalid;
use crate::jinja::python::{MAX_ITEMS, collect};

/// The operator `~`.
pub(super) fn concat(args: Rest<Value>) -> Result<String, Error> {
    let mut out = String::new();
    for value in args.iter() {
        write_text(&mut out, value)?;
    }
    Ok(out)
}

/// The operator `%`: of a text it fills in values, of numbers it is the remainder with the sign of the divisor.
pub(super) fn modulo(left: &Value, right: &Value) -> Result<Value, Error> {
    if let Some(text) = left.as_str() {
        return percent_format(text, right).map(Value::from);
    }
    let unsupported = || {
        invalid(format!("% is not defined for values of type {} and {}", left.kind(), right.kind()))
    };
    let is_number = |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool);
    if !is_number(left) || !is_number(right) {
        return Err(unsupported());
    }
    match (i128::try_from(left.clone()), i128::try_from(right.clone())) {
        (Ok(_), Ok(0)) => Err(invalid("% by zero")),
        (Ok(a), Ok(b)) if is_whole(left) && is_whole(right) => {
            let remainder = a.checked_rem(b).unwrap_or(0);
            let has_other_sign = remainder != 0 && (remainder < 0) != (b < 0);
            let remainder = if has_other_sign { remainder + b } else { remainder };
            Ok(i64::try_from(remainder).map_or_else(|_| Value::from(remainder), Value::from))
        }
        _ => {
            let (a, b) = (f64::try_from(left.clone())?, f64::try_from(right.clone())?);
            if b == 0.0 {
                return Err(invalid("% by zero"));
            }
            let remainder = a % b;
            let has_other_sign = remainder != 0.0 && (remainder < 0.0) != (b < 0.0);
            Ok(Value::from(match remainder {
                r if has_other_sign => r + b,
                0.0 => 0.0_f64.copysign(b),
                r => r,
            }))
        }
    }
}

/// The operator `*`: numbers are multiplied, texts and lists repeated.
pub(super) fn multiply(left: &Value, right: &Value) -> Result<Value, Error> {
    let can_repeat = |value: &Value| {
        matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Iterable)
    };
    if can_repeat(left) || can_repeat(right) {
        let (value, n) = if can_repeat(left) { (left, right) } else { (right, left) };
        if !is_whole(n) {
            return Err(invalid(format!("a {} is repeated by whole numbers only", value.kind())));
        }
        return repeat(value, usize::try_from(i64::try_from(n.clone())?).unwrap_or(0));
    }
    if is_whole(left) && is_whole(right) {
        let product = i128::try_from(left.clone())?.checked_mul(i128::try_from(right.clone())?);
        let product = product.ok_or_else(|| invalid(format!("{left} * {right} is too large")))?;
        return Ok(i64::try_from(product).map_or_else(|_| Value::from(product), Value::from));
    }
    match (f64::try_from(left.clone()), f64::try_from(right.clone())) {
        (Ok(a), Ok(b)) => Ok(Value::from(a * b)),
        _ => Err(invalid(format!(
            "* is not defined for values of type {} and {}",
            left.kind(),
            right.kind()
        ))),
    }
}

fn repeat(value: &Value, n: usize) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        check_len(text.len().saturating_mul(n))?;
        return Ok(Value::from(text.repeat(n)));
    }
    let items = collect(value)?;
    if items.len().saturating_mul(n) > MAX_ITEMS {
        return Err(invalid(format!(
            "{} items {n} times, at most {MAX_ITEMS} are allowed",
            items.len()
        )));
    }
    let items = std::iter::repeat_n(items, n).flatten().collect::<Vec<_>>();
    Ok(if value.is_tuple() { Value::from(Tuple::from(items)) } else { Value::from(items) })
}

/// `value[start:stop:step]`
pub(super) fn slice(
    value: &Value,
    start: &Value,
    stop: &Value,
    step: &Value,
) -> Result<Value, Error> {
    let bound = |value: &Value| {
        if value.is_none() { Ok(None) } else { i64::try_from(value.clone()).map(Some) }
    };
    let (start, stop, step) = (bound(start)?, bound(stop)?, bound(step)?.unwrap_or(1));
    if step == 0 {
        return Err(invalid("slice step cannot be zero"));
    }
    if let Some(text) = value.as_str() {
        let chars: Vec<char> = text.chars().collect();
        let picked = indices(chars.len(), start, stop, step).map(|i| chars[i]);
        return Ok(Value::from(picked.collect::<String>()));
    }
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
        return Err(invalid(format!("a value of type {} has no slices", value.kind())));
    }
    let items = collect(value)?;
    let picked: Vec<Value> =
        indices(items.len(), start, stop, step).map(|i| items[i].clone()).collect();
    Ok(if value.is_tuple() { Value::from(Tuple::from(picked)) } else { Value::from(picked) })
}

/// The indices that a slice of `len` items has.
fn indices(
    len: usize,
    start: Option<i64>,
    stop: Option<i64>,
    step: i64,
) -> impl Iterator<Item = usize> {
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    let (lowest, highest) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let clip = |bound: i64| {
        let bound = if bound < 0 { bound.saturating_add(len) } else { bound };
        bound.clamp(lowest, highest)
    };
    let (first, end) = if step > 0 { (lowest, highest) } else { (highest, lowest) };
    let mut at = start.map_or(first, clip);
    let stop = stop.map_or(end, clip);
    std::iter::from_fn(move || {
        let is_inside = if step > 0 { at < stop } else { at > stop };
        let index = usize::try_from(at).ok().filter(|_| is_inside)?;
        at = at.saturating_add(step);
        Some(index)
    })
}
