//! Filters for HTML and addresses.

use minijinja::Error;
use minijinja::value::{Value, ValueKind};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::args::{Args, Given, invalid};
use super::characters::is_space;
use super::python::{check_len, text};

/// What Python's `quote` encodes.
const UNSAFE: &AsciiSet = &NON_ALPHANUMERIC.remove(b'_').remove(b'.').remove(b'-').remove(b'~');
/// What Python's `quote` encodes in a path.
const UNSAFE_IN_PATHS: &AsciiSet = &UNSAFE.remove(b'/');

/// HTML escapes as Python's `markupsafe` writes them.
pub(super) fn escape(value: &Value) -> Result<Value, Error> {
    if value.is_safe() { Ok(value.clone()) } else { force_escape(value) }
}

pub(super) fn force_escape(value: &Value) -> Result<Value, Error> {
    let mut out = String::new();
    for c in text(value)?.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    check_len(out.len())?;
    Ok(Value::from_safe_string(out))
}

/// Text without comments and tags, with single spaces and without escapes.
pub(super) fn striptags(value: &Value) -> Result<String, Error> {
    let mut text = text(value)?;
    for (open, close) in [("<!--", "-->"), ("<", ">")] {
        let mut out = String::with_capacity(text.len());
        let mut rest = text.as_str();
        while let Some(start) = rest.find(open) {
            let Some(end) = rest[start..].find(close) else { break };
            out.push_str(&rest[..start]);
            rest = &rest[start + end + close.len()..];
        }
        out.push_str(rest);
        text = out;
    }
    let words: Vec<&str> = text.split(is_space).filter(|word| !word.is_empty()).collect();
    let named = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&#39;", "'"),
        ("&#34;", "\""),
        ("&quot;", "\""),
        ("&amp;", "&"),
    ];
    Ok(named.iter().fold(words.join(" "), |text, (name, c)| text.replace(name, c)))
}

pub(super) fn urlencode(value: &Value) -> Result<String, Error> {
    let is_list = matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable);
    if value.kind() != ValueKind::Map && !is_list {
        return Ok(utf8_percent_encode(&text(value)?, UNSAFE_IN_PATHS).to_string());
    }
    let mut fields = Vec::new();
    for item in value.try_iter()?.checked() {
        let item = item?;
        let (key, value) = if is_list {
            (item.get_item_by_index(0)?, item.get_item_by_index(1)?)
        } else {
            (item.clone(), value.get_item(&item)?)
        };
        let quoted = |value: &Value| {
            let text = text(value)?;
            Ok::<_, Error>(utf8_percent_encode(&text, UNSAFE).to_string().replace("%20", "+"))
        };
        fields.push(format!("{}={}", quoted(&key)?, quoted(&value)?));
    }
    Ok(fields.join("&"))
}

pub(super) fn xmlattr(value: &Value, args: Given) -> Result<String, Error> {
    let mut args = Args::of(args)?;
    let with_space = args.take("autospace")?.is_none_or(|value| value.is_true());
    args.finish()?;
    let mut fields = Vec::new();
    for key in value.try_iter()?.checked() {
        let key = key?;
        let item = value.get_item(&key)?;
        if item.is_none() || item.is_undefined() {
            continue;
        }
        let name = text(&key)?;
        if name.contains(|c: char| is_space(c) || "/>=".contains(c)) {
            return Err(invalid(format!("{name:?} is no name of an attribute")));
        }
        fields.push(format!("{}=\"{}\"", escape(&key)?, escape(&item)?));
    }
    let space = if with_space && !fields.is_empty() { " " } else { "" };
    Ok(format!("{space}{}", fields.join(" ")))
}
