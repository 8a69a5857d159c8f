//! Bounds of numbers. The library writes them as digits: it has integers of 64 bits, and no
//! exponents.

use serde_json::{Map, Number, Value};

/// What no integer of 64 bits reaches.
const TOO_LARGE: f64 = 9_223_372_036_854_775_808.0;
/// The largest bound of a number with a fraction: the library takes its integer part, and adds to
/// it.
const LARGEST: f64 = 9e18;
/// From here on the library cannot extend a range of integers to infinity.
const NEEDS_OTHER_BOUND: f64 = 1e18;
/// The largest double below [`TOO_LARGE`], which the library can negate.
const LARGEST_BELOW: i64 = i64::MAX - 1023;
/// Digits of a bound at most.
const MAX_DIGITS: usize = 40;

/// The keywords of bounds that are kept, and those that are not, with the reason.
#[derive(Default)]
pub(super) struct Bounds {
    pub(super) kept: Map<String, Value>,
    pub(super) lost: Vec<(&'static str, &'static str)>,
}

impl Bounds {
    /// Reads the bounds of a schema.
    pub(super) fn of(schema: &Map<String, Value>, is_integer: bool) -> Bounds {
        let mut bounds = Bounds::default();
        for (key, exclusive, sign) in
            [("minimum", "exclusiveMinimum", -1.0), ("maximum", "exclusiveMaximum", 1.0)]
        {
            match schema.get(exclusive) {
                // In draft 4 it says of the other keyword that it is exclusive.
                Some(Value::Bool(true)) => bounds.read(schema, (key, exclusive), sign, is_integer),
                other => {
                    bounds.read(schema, (key, key), sign, is_integer);
                    if !matches!(other, None | Some(Value::Null | Value::Bool(false))) {
                        bounds.read(schema, (exclusive, exclusive), sign, is_integer);
                    }
                }
            }
        }
        if is_integer {
            bounds.extend();
        }
        bounds
    }

    /// Reads the keyword `from` as a bound called `to`; `sign` points outwards.
    fn read(
        &mut self,
        schema: &Map<String, Value>,
        (from, to): (&'static str, &'static str),
        sign: f64,
        is_integer: bool,
    ) {
        let bound = match schema.get(from) {
            None | Some(Value::Null) => return,
            Some(Value::Number(bound)) => bound,
            Some(_) => return self.lost.push((from, "it is no number")),
        };
        let value = bound.as_f64().unwrap_or(f64::INFINITY * sign);
        let outwards = value * sign;
        let problem = if value.to_string().len() > MAX_DIGITS {
            Some("it has too many digits")
        } else if !is_integer {
            (value.abs() > LARGEST).then_some("no number that large can be a bound")
        } else if outwards > TOO_LARGE || outwards <= -TOO_LARGE {
            Some("no integer of 64 bits is that large")
        } else if outwards == TOO_LARGE && sign < 0.0 {
            Some("the smallest integer of 64 bits cannot be a bound")
        } else {
            None
        };
        match problem {
            Some(problem) => self.lost.push((from, problem)),
            None => drop(self.kept.insert(to.to_owned(), rounded(bound, sign))),
        }
    }

    /// Adds the bounds that ranges of large integers need on their other side.
    fn extend(&mut self) {
        let of = |names: [&str; 2]| {
            let mut found = names.iter().filter_map(|name| self.kept.get(*name)?.as_f64());
            found.next()
        };
        let least = of(["minimum", "exclusiveMinimum"]);
        let most = of(["maximum", "exclusiveMaximum"]);
        // Integers without any bound get narrower ones later: what was left out needs another.
        let has_lost = |name| self.lost.iter().any(|(lost, _)| name == *lost);
        let has_lost_most = has_lost("maximum") || has_lost("exclusiveMaximum");
        let (needs_least, needs_most) = match (least, most) {
            (None, None) => (has_lost_most, !self.lost.is_empty() && !has_lost_most),
            (None, Some(most)) => (most <= -NEEDS_OTHER_BOUND, false),
            (Some(least), None) => (false, least >= NEEDS_OTHER_BOUND),
            (Some(_), Some(_)) => (false, false),
        };
        if needs_least {
            self.kept.insert(String::from("minimum"), Value::from(-LARGEST_BELOW));
        }
        if needs_most {
            self.kept.insert(String::from("maximum"), Value::from(i64::MAX));
        }
    }
}

/// A bound that is a double: an integer that is none is moved outwards.
fn rounded(bound: &Number, sign: f64) -> Value {
    let (Some(exact), Some(value)) = (bound.as_i64(), bound.as_f64()) else {
        return Value::Number(bound.clone());
    };
    let is_inside = if sign < 0.0 {
        i128::from(exact) < value as i128
    } else {
        i128::from(exact) > value as i128
    };
    match (is_inside, sign < 0.0) {
        (false, _) => Value::Number(bound.clone()),
        (true, true) => Value::from(value.next_down()),
        (true, false) => Value::from(value.next_up()),
    }
}

/// How many remainders the library has to tell apart for multiples of a number, where it can.
pub(super) fn step_size(step: &Value) -> Option<u32> {
    let step = step.as_f64().filter(|step| *step > 0.0)?;
    let digits = step.to_string();
    let (whole, fraction) = digits.split_once('.').unwrap_or((&digits, ""));
    let coefficient = format!("{whole}{fraction}").parse::<u32>().ok()?;
    (fraction.len() <= 9).then_some(coefficient)
}

/// Whether the library writes a number as it is: it takes numbers as doubles, and writes them
/// without exponents.
pub(super) fn is_exact(number: &Number) -> bool {
    let Some(value) = number.as_f64() else { return false };
    let is_short = value.to_string().len() <= MAX_DIGITS;
    let whole = number.as_i64().map(i128::from).or(number.as_u64().map(i128::from));
    is_short
        && match whole {
            Some(whole) => value as i128 == whole && value.abs() < TOO_LARGE,
            None => true,
        }
}
