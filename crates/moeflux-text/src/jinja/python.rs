//! Values as Python prints, adds and cuts them.

use std::fmt::Write;

use minijinja::value::{Tuple, Value, ValueKind};
use minijinja::{Error, Output, State};

use super::super::json::python_float;
use super::args::{Args, Given, invalid};

/// Longest text that an operator, a filter or a method makes, in bytes.
pub(super) const MAX_TEXT: usize = 64 << 20;

/// Longest text that a width, a count of repeats or an indentation makes of a short one, in characters.
/// `std::fmt` panics at more.
pub(super) const MAX_WIDTH: usize = 65_535;

/// Most items of a list that an operator makes or copies.
pub(crate) const MAX_ITEMS: usize = 1 << 20;

/// Lists in lists that are printed, written as JSON or assigned.
pub(super) const MAX_DEPTH: usize = 200;

/// Refuses a text that is too long.
pub(super) fn check_len(n_bytes: usize) -> Result<(), Error> {
    if n_bytes > MAX_TEXT {
        return Err(invalid(format!("a text of {n_bytes} bytes, at most {MAX_TEXT} are allowed")));
    }
    Ok(())
}

/// A width, as a count of characters that may be filled up.
pub(super) fn check_width(width: i64) -> Result<usize, Error> {
    let width = usize::try_from(width).unwrap_or(0);
    if width > MAX_WIDTH {
        return Err(invalid(format!("a width of {width}, at most {MAX_WIDTH} is allowed")));
    }
    Ok(width)
}

/// Prints the value of `{{ … }}`.
pub(super) fn write_output(
    out: &mut Output<'_>,
    state: &mut State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    let is_plain = matches!(value.kind(), ValueKind::String | ValueKind::Undefined);
    if is_plain || !matches!(state.auto_escape(), minijinja::AutoEscape::None) {
        return minijinja::escape_formatter(out, state, value);
    }
    out.write_str(&text(value)?).map_err(Error::from)
}

/// `str(value)`
pub(crate) fn text(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    write_text(&mut out, value)?;
    Ok(out)
}

pub(super) fn write_text(out: &mut String, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(()),
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default();
            check_len(out.len() + text.len())?;
            out.push_str(text);
            Ok(())
        }
        _ => write_repr(out, value, 0),
    }
}

/// `repr(value)`
pub(super) fn repr(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    write_repr(&mut out, value, 0)?;
    Ok(out)
}

fn write_repr(out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    check_len(out.len())?;
    if depth > MAX_DEPTH {
        return Err(invalid("a value is nested too deeply to be printed"));
    }
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::String => quote(out, value.as_str().unwrap_or_default()),
        ValueKind::Number if !value.is_integer() => match f64::try_from(value.clone()) {
            Ok(x) => out.push_str(&python_float(x)),
            Err(_) => write_display(out, value),
        },
        ValueKind::Seq | ValueKind::Iterable => {
            let tuple = value.is_tuple();
            out.push(if tuple { '(' } else { '[' });
            let mut n = 0;
            for item in value.try_iter()?.checked() {
                if n > 0 {
                    out.push_str(", ");
                }
                write_repr(out, &item?, depth + 1)?;
                n += 1;
            }
            out.push_str(match (tuple, n) {
                (true, 1) => ",)",
                (true, _) => ")",
                (false, _) => "]",
            });
        }
        ValueKind::Map if !is_macro(value) => {
            out.push('{');
            for (i, key) in value.try_iter()?.checked().enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                let key = key?;
                write_repr(out, &key, depth + 1)?;
                out.push_str(": ");
                write_repr(out, &value.get_item(&key)?, depth + 1)?;
            }
            out.push('}');
        }
        _ => write_display(out, value),
    }
    Ok(())
}

fn write_display(out: &mut String, value: &Value) {
    // Writing to a String does not fail.
    let _ = write!(out, "{value}");
}

/// Whether a value is a macro: minijinja keeps these as maps of three keys.
pub(super) fn is_macro(value: &Value) -> bool {
    value.kind() == ValueKind::Map
        && value.len() == Some(3)
        && value.get_attr("caller").is_ok_and(|caller| caller.kind() == ValueKind::Bool)
        && value.to_string().starts_with("<macro ")
}

/// `repr` of a text.
pub(super) fn quote(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if is_printable(c) => out.push(c),
            c => push_escape(out, c),
        }
    }
    out.push(quote);
}

/// `\x07`, `\u200b` or `\U000e0001`.
pub(super) fn push_escape(out: &mut String, c: char) {
    let code = u32::from(c);
    // Writing to a String does not fail.
    let _ = match code {
        0x00..=0xff => write!(out, "\\x{code:02x}"),
        0x100..=0xffff => write!(out, "\\u{code:04x}"),
        _ => write!(out, "\\U{code:08x}"),
    };
}

/// `str.isprintable` of one character, by the table of Rust's `Debug`.
pub(super) fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return (' '..='~').contains(&c);
    }
    // Combining marks are printed as they are anywhere but at the beginning of a text.
    let mut text = String::from("a");
    text.push(c);
    text.escape_debug().count() == 2
}

/// The items of a list.
pub(super) fn collect(value: &Value) -> Result<Vec<Value>, Error> {
    let items: Vec<Value> =
        value.try_iter()?.checked().take(MAX_ITEMS + 1).collect::<Result<_, Error>>()?;
    if items.len() > MAX_ITEMS {
        return Err(invalid(format!("a list of more than {MAX_ITEMS} items")));
    }
    Ok(items)
}

pub(crate) fn is_whole(value: &Value) -> bool {
    value.kind() == ValueKind::Bool || value.is_integer()
}

/// Sorts the arguments of a call of a macro by its parameters' names. What is left over goes into `varargs`
/// and `kwargs`, where the macro uses these.
pub(super) fn bind(
    names: Vec<String>,
    varargs: bool,
    kwargs: bool,
    args: Given,
) -> Result<Value, Error> {
    let mut args = Args::of(args)?;
    let mut bound = Vec::new();
    for name in &names {
        match args.positional() {
            Some(value) => bound.push((name.clone(), value)),
            None => break,
        }
    }
    let rest: Vec<Value> = std::iter::from_fn(|| args.positional()).collect();
    if !rest.is_empty() && !varargs {
        return Err(Error::from(minijinja::ErrorKind::TooManyArguments));
    }
    if varargs {
        bound.push((String::from("varargs"), Value::from(Tuple::from(rest))));
    }
    let mut others = Vec::new();
    for (name, value) in args.keywords()? {
        if bound.iter().any(|(known, _)| *known == name) {
            return Err(invalid(format!("argument {name} is given twice")));
        }
        let is_named = names.contains(&name) || name == "caller" || !kwargs;
        if is_named { &mut bound } else { &mut others }.push((name, value));
    }
    if kwargs {
        bound.push((String::from("kwargs"), Value::from_pairs(others)));
    }
    Ok(Value::from_pairs(bound))
}
