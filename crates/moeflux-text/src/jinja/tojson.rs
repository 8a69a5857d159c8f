//! The filter `tojson` as `transformers` defines it: `json.dumps`, without escapes unless they are asked for.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};
use serde_json::{Map, Number, Value as Json};

use super::super::json::{Style, python_float, to_python_json};
use super::args::{Args, Given, invalid};
use super::python::{MAX_DEPTH, check_len};

/// Widest indentation of one level.
const MAX_INDENT: usize = 64;

pub(super) fn tojson(value: &Value, args: Given) -> Result<String, Error> {
    let mut args = Args::of(args)?;
    let ascii = args.flag("ensure_ascii")?;
    let indent = match args.take("indent")?.filter(|value| !value.is_none()) {
        None => None,
        Some(value) => Some(match value.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::try_from(i64::try_from(value)?).unwrap_or(0).min(MAX_INDENT)),
        }),
    };
    let separators = args.take("separators")?.filter(|value| !value.is_none());
    let sorted = args.flag("sort_keys")?;
    args.finish()?;
    let (item, key) = match separators {
        Some(value) => {
            let parts = value.try_iter()?.checked().collect::<Result<Vec<_>, Error>>()?;
            match parts.iter().map(Value::as_str).collect::<Vec<_>>()[..] {
                [Some(item), Some(key)] => (item.to_owned(), key.to_owned()),
                _ => return Err(invalid("separators must be two strings")),
            }
        }
        None if indent.is_some() => (",".into(), ": ".into()),
        None => (", ".into(), ": ".into()),
    };
    let json = to_json(value, 0)?;
    let text = to_python_json(&json, &Style { indent, item, key, ascii, sorted });
    check_len(text.len())?;
    Ok(text)
}

/// What of a value JSON has.
fn to_json(value: &Value, depth: usize) -> Result<Json, Error> {
    if depth > MAX_DEPTH {
        return Err(invalid("a value is nested too deeply for JSON"));
    }
    let refused = || {
        let message = format!("a value of type {} has no JSON", value.kind());
        Err(Error::new(ErrorKind::BadSerialization, message))
    };
    match value.kind() {
        ValueKind::None => Ok(Json::Null),
        ValueKind::Bool => Ok(Json::Bool(value.is_true())),
        ValueKind::String => Ok(Json::from(value.as_str().unwrap_or_default())),
        ValueKind::Number => number(value),
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter()?.checked().map(|item| to_json(&item?, depth + 1));
            items.collect::<Result<Vec<_>, Error>>().map(Json::Array)
        }
        ValueKind::Map if !super::python::is_macro(value) => {
            let mut fields = Map::new();
            for key in value.try_iter()?.checked() {
                let key = key?;
                let item = to_json(&value.get_item(&key)?, depth + 1)?;
                fields.insert(key_text(&key)?, item);
            }
            Ok(Json::Object(fields))
        }
        _ => refused(),
    }
}

fn number(value: &Value) -> Result<Json, Error> {
    if !value.is_integer() {
        let x = f64::try_from(value.clone())?;
        return Number::from_f64(x)
            .map(Json::Number)
            .ok_or_else(|| invalid(format!("{x} has no JSON")));
    }
    if let Ok(n) = i64::try_from(value.clone()) {
        return Ok(Json::from(n));
    }
    let n = u64::try_from(value.clone());
    n.map(Json::from).map_err(|_| invalid(format!("{value} is too large for JSON")))
}

/// A key as `json.dumps` writes it.
fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_owned()),
        ValueKind::None => Ok(String::from("null")),
        ValueKind::Bool => Ok(String::from(if key.is_true() { "true" } else { "false" })),
        ValueKind::Number if key.is_integer() => Ok(key.to_string()),
        ValueKind::Number => Ok(python_float(f64::try_from(key.clone())?)),
        kind => Err(invalid(format!("a {kind} is no key of JSON"))),
    }
}
