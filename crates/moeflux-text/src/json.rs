//! JSON text byte for byte as Python's `json.dumps` writes it: templates were made with it.

use std::fmt::Write;

use serde_json::{Number, Value};

/// The keyword arguments of `json.dumps` that templates use.
#[derive(Clone, Debug)]
pub(super) struct Style {
    /// One level of indentation; on one line if `None`.
    pub(super) indent: Option<String>,
    /// Between items.
    pub(super) item: String,
    /// Between a key and its value.
    pub(super) key: String,
    /// Whether everything above U+007F is escaped.
    pub(super) ascii: bool,
    /// Whether keys are sorted.
    pub(super) sorted: bool,
}

pub(super) fn to_python_json(value: &Value, style: &Style) -> String {
    let mut out = String::new();
    write_value(&mut out, value, style, 0);
    out
}

fn write_value(out: &mut String, value: &Value, style: &Style, depth: usize) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(number) => out.push_str(&python_number(number)),
        Value::String(text) => write_string(out, text, style.ascii),
        Value::Array(items) => write_all(out, "[]", items, style, depth, |out, item| {
            write_value(out, item, style, depth + 1);
        }),
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            if style.sorted {
                fields.sort_by_key(|(key, _)| *key);
            }
            write_all(out, "{}", &fields, style, depth, |out, (key, item)| {
                write_string(out, key, style.ascii);
                out.push_str(&style.key);
                write_value(out, item, style, depth + 1);
            });
        }
    }
}

fn write_all<T>(
    out: &mut String,
    brackets: &str,
    items: &[T],
    style: &Style,
    depth: usize,
    write_one: impl Fn(&mut String, &T),
) {
    if items.is_empty() {
        out.push_str(brackets);
        return;
    }
    let new_line = |out: &mut String, depth: usize| {
        if let Some(indent) = &style.indent {
            out.push('\n');
            out.push_str(&indent.repeat(depth));
        }
    };
    out.push_str(&brackets[..1]);
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            out.push_str(&style.item);
        }
        new_line(out, depth + 1);
        write_one(out, item);
    }
    new_line(out, depth);
    out.push_str(&brackets[1..]);
}

fn write_string(out: &mut String, text: &str, ascii: bool) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || (ascii && c > '~') => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    // Writing to a String does not fail.
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

fn python_number(number: &Number) -> String {
    match number.as_f64().filter(|_| number.is_f64()) {
        Some(x) => python_float(x),
        None => number.to_string(),
    }
}

/// Python's `repr` of a float: fixed notation for exponents from -4 to 15.
pub(super) fn python_float(x: f64) -> String {
    if x.is_nan() {
        return String::from("nan");
    }
    let scientific = format!("{x:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    match exponent.parse::<i32>() {
        Ok(-4..16) => {
            let fixed = format!("{x}");
            if fixed.contains('.') { fixed } else { fixed + ".0" }
        }
        Ok(e) => format!("{digits}e{}{:02}", if e < 0 { '-' } else { '+' }, e.abs()),
        Err(_) => scientific,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_python_writes_them() {
        for (x, want) in [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1e300, "1e+300"),
        ] {
            assert_eq!(python_number(&Number::from_f64(x).unwrap()), want);
        }
        assert_eq!(python_number(&Number::from(-7)), "-7");
    }

    #[test]
    fn strings_are_escaped_as_python_escapes_them() {
        let text = "\"\\\n\u{1}\u{7f}é😀/<";
        let mut out = String::new();
        write_string(&mut out, text, false);
        assert_eq!(out, "\"\\\"\\\\\\n\\u0001\u{7f}é😀/<\"");
        out.clear();
        write_string(&mut out, text, true);
        assert_eq!(out, "\"\\\"\\\\\\n\\u0001\\u007f\\u00e9\\ud83d\\ude00/<\"");
    }
}
