//! The filters of jinja2 that minijinja lacks or gives other results for.

use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};

use super::args::{Args, Given, expect_text, invalid};
use super::characters::{decimal, is_space};
use super::format::format_filter;
use super::methods::replace_text;
use super::python::{check_len, repr, text, write_text};
use super::tojson::tojson;
use super::{markup, wrap};

pub(super) fn add(env: &mut Environment<'_>) {
    env.add_filter("tojson", tojson);
    env.add_filter("int", int);
    env.add_filter("float", float);
    env.add_filter("default", default);
    env.add_filter("d", default);
    env.add_filter("string", string);
    env.add_filter("trim", trim);
    env.add_filter("join", join);
    env.add_filter("replace", replace);
    env.add_filter("length", length);
    env.add_filter("count", length);
    env.add_filter("first", first);
    env.add_filter("format", |value: &Value, args: Given| format_filter(value, args));
    env.add_filter("map", map);
    env.add_filter("pprint", |value: &Value| repr(value));
    env.add_filter("dictsort", dictsort);
    env.add_filter("filesizeformat", filesizeformat);
    env.add_filter("wordcount", wrap::wordcount);
    env.add_filter("indent", wrap::indent);
    env.add_filter("truncate", wrap::truncate);
    env.add_filter("wordwrap", wrap::wordwrap);
    env.add_filter("center", wrap::center);
    env.add_filter("escape", markup::escape);
    env.add_filter("e", markup::escape);
    env.add_filter("forceescape", markup::force_escape);
    env.add_filter("striptags", markup::striptags);
    env.add_filter("urlencode", markup::urlencode);
    env.add_filter("xmlattr", markup::xmlattr);
}

fn refuse_undefined(value: &Value) -> Result<(), Error> {
    if value.is_undefined() {
        return Err(Error::new(ErrorKind::UndefinedError, "the value is undefined"));
    }
    Ok(())
}

/// `int(value, base)`, and `default` where that fails.
fn int(value: &Value, args: Given) -> Result<Value, Error> {
    refuse_undefined(value)?;
    let mut args = Args::of(args)?;
    let default = args.take("default")?.unwrap_or_else(|| Value::from(0));
    let base = args.integer("base")?.unwrap_or(10);
    args.finish()?;
    let parsed = match value.kind() {
        ValueKind::Bool => Some(i128::from(value.is_true())),
        ValueKind::Number if value.is_integer() => return Ok(value.clone()),
        ValueKind::Number => truncated(f64::try_from(value.clone())?)?,
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default();
            match parse_int(text, base)? {
                Some(parsed) => Some(parsed),
                None => match parse_float(text) {
                    Some(x) => truncated(x)?,
                    None => None,
                },
            }
        }
        _ => None,
    };
    Ok(parsed.map_or(default, |n| i64::try_from(n).map_or_else(|_| Value::from(n), Value::from)))
}

/// A number without its fraction; nothing for what is no number.
fn truncated(x: f64) -> Result<Option<i128>, Error> {
    if x.is_nan() {
        return Ok(None);
    }
    if x.abs() >= 1.7e38 {
        return Err(invalid("the number is too large for an integer"));
    }
    #[expect(clippy::cast_possible_truncation, reason = "the bound is checked")]
    Ok(Some(x as i128))
}

/// `int(text, base)`
fn parse_int(text: &str, base: i64) -> Result<Option<i128>, Error> {
    let Some(text) = plain_digits(text) else { return Ok(None) };
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.strip_prefix('+').unwrap_or(&text)),
    };
    let lower = digits.to_ascii_lowercase();
    let prefixed = [("0x", 16), ("0o", 8), ("0b", 2)];
    let prefixed = prefixed
        .iter()
        .find(|(prefix, of)| lower.starts_with(prefix) && (base == 0 || base == *of));
    let (digits, base) = match prefixed {
        Some((_, of)) => (&digits[2..], *of),
        None if base == 0 => (digits, 10),
        None => (digits, base),
    };
    let radix = u32::try_from(base).ok().filter(|radix| (2..=36).contains(radix));
    let radix = radix.ok_or_else(|| invalid("a base is 0 or from 2 to 36"))?;
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
        return Ok(None);
    }
    match i128::from_str_radix(&format!("{sign}{digits}"), radix) {
        Ok(n) => Ok(Some(n)),
        Err(_) => Err(invalid("the number is too large for an integer")),
    }
}

/// A number without white space around it and `_` in it, in ASCII digits; nothing if a `_` is out of place.
fn plain_digits(text: &str) -> Option<String> {
    let text = text.trim_matches(is_space);
    let is_misplaced = text.starts_with('_') || text.ends_with('_') || text.contains("__");
    let plain = |c: char| decimal(c).and_then(|digit| char::from_digit(digit, 10)).unwrap_or(c);
    (!is_misplaced).then(|| text.chars().filter(|c| *c != '_').map(plain).collect())
}

/// `float(text)`
fn parse_float(text: &str) -> Option<f64> {
    plain_digits(text)?.parse().ok()
}

fn float(value: &Value, args: Given) -> Result<Value, Error> {
    refuse_undefined(value)?;
    let mut args = Args::of(args)?;
    let default = args.take("default")?.unwrap_or_else(|| Value::from(0.0));
    args.finish()?;
    let parsed = match value.kind() {
        ValueKind::Number | ValueKind::Bool => Some(f64::try_from(value.clone())?),
        ValueKind::String => parse_float(value.as_str().unwrap_or_default()),
        _ => None,
    };
    Ok(parsed.map_or(default, Value::from))
}

fn default(value: &Value, args: Given) -> Result<Value, Error> {
    let mut args = Args::of(args)?;
    let other = args.take("default_value")?.unwrap_or_else(|| Value::from(""));
    let boolean = args.flag("boolean")?;
    args.finish()?;
    let is_missing = value.is_undefined() || (boolean && !value.is_true());
    Ok(if is_missing { other } else { value.clone() })
}

fn string(value: &Value) -> Result<Value, Error> {
    if value.is_safe() {
        return Ok(value.clone());
    }
    text(value).map(Value::from)
}

/// `str.strip`, of any value's text.
fn trim(value: &Value, args: Given) -> Result<String, Error> {
    let mut args = Args::of(args)?;
    let chars = args.text("chars")?;
    args.finish()?;
    let is_trimmed = |c: char| match &chars {
        Some(chars) => chars.contains(c),
        None => is_space(c),
    };
    Ok(text(value)?.trim_matches(is_trimmed).to_owned())
}

fn join(value: &Value, args: Given) -> Result<String, Error> {
    let mut args = Args::of(args)?;
    let separator = args.take("d")?.map_or_else(|| Ok(String::new()), |value| text(&value))?;
    let attribute = args.take("attribute")?;
    args.finish()?;
    let mut out = String::new();
    for (i, item) in value.try_iter()?.checked().enumerate() {
        if i > 0 {
            check_len(out.len() + separator.len())?;
            out.push_str(&separator);
        }
        let item = item?;
        match &attribute {
            Some(path) => write_text(&mut out, &by_path(&item, path)?)?,
            None => write_text(&mut out, &item)?,
        }
    }
    Ok(out)
}

/// What a path such as `address.zip` leads to.
fn by_path(item: &Value, path: &Value) -> Result<Value, Error> {
    let Some(path) = path.as_str() else { return item.get_item(path) };
    path.split('.').try_fold(item.clone(), |value, key| match key.parse::<usize>() {
        Ok(index) => value.get_item(&Value::from(index)),
        Err(_) => value.get_attr(key),
    })
}

/// Attributes of all items, or what a filter makes of them.
fn map(state: &mut State<'_, '_>, value: &Value, args: Given) -> Result<Value, Error> {
    let given = args.into_values();
    let mut args = Args::new(&given)?;
    let items = value.try_iter()?.checked();
    if let Some(filter) = args.positional() {
        let filter = expect_text(&filter, "the filter")?;
        let apply = |item: Result<Value, Error>| {
            let mut values = given.clone();
            values[0] = item?;
            state.apply_filter(filter, &values)
        };
        return items.map(apply).collect::<Result<Vec<_>, Error>>().map(Value::from);
    }
    let path = args.need("attribute")?;
    let default = args.take("default")?;
    args.finish()?;
    let get = |item: Result<Value, Error>| {
        let found = by_path(&item?, &path)?;
        Ok(match &default {
            Some(default) if found.is_undefined() => default.clone(),
            _ => found,
        })
    };
    items.map(get).collect::<Result<Vec<_>, Error>>().map(Value::from)
}

fn replace(value: &Value, args: Given) -> Result<String, Error> {
    let mut args = Args::of(args)?;
    let (old, new) = (args.need("old")?, args.need("new")?);
    let count = args.integer("count")?;
    args.finish()?;
    replace_text(&text(value)?, &text(&old)?, &text(&new)?, count)
}

fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() {
        return Ok(0);
    }
    value.len().ok_or_else(|| invalid(format!("a value of type {} has no length", value.kind())))
}

fn first(value: &Value) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.chars().next().map_or(Value::UNDEFINED, Value::from));
    }
    value.try_iter()?.checked().next().unwrap_or(Ok(Value::UNDEFINED))
}

fn dictsort(value: &Value, args: Given) -> Result<Value, Error> {
    let mut args = Args::of(args)?;
    let case_sensitive = args.flag("case_sensitive")?;
    let by = args.text("by")?;
    let reverse = args.flag("reverse")?;
    args.finish()?;
    let by_value = match by.as_deref() {
        None | Some("key") => false,
        Some("value") => true,
        Some(by) => return Err(invalid(format!("dictsort by {by:?}: it is \"key\" or \"value\""))),
    };
    if value.kind() != ValueKind::Map {
        return Err(invalid(format!("dictsort takes a dict, not {}", value.kind())));
    }
    let mut pairs = Vec::new();
    for key in value.try_iter()?.checked() {
        let key = key?;
        let item = value.get_item(&key)?;
        pairs.push([key, item]);
    }
    let order = |pair: &[Value; 2]| {
        let by = &pair[usize::from(by_value)];
        match by.as_str() {
            Some(text) if !case_sensitive => Value::from(text.to_lowercase()),
            _ => by.clone(),
        }
    };
    pairs.sort_by_cached_key(order);
    if reverse {
        // Equal ones keep their order.
        pairs.reverse();
        pairs.sort_by_cached_key(|pair| std::cmp::Reverse(order(pair)));
    }
    Ok(pairs.into_iter().map(|pair| Value::from(minijinja::value::Tuple::from(pair))).collect())
}

fn filesizeformat(value: &Value, args: Given) -> Result<String, Error> {
    let mut args = Args::of(args)?;
    let binary = args.flag("binary")?;
    args.finish()?;
    let bytes = match value.as_str() {
        Some(text) => parse_float(text).ok_or_else(|| invalid("filesizeformat takes a number"))?,
        None => f64::try_from(value.clone())?,
    };
    let base: f64 = if binary { 1024.0 } else { 1000.0 };
    if bytes == 1.0 {
        return Ok(String::from("1 Byte"));
    }
    if bytes < base {
        return Ok(format!("{} Bytes", bytes.trunc()));
    }
    let prefixes = ["k", "M", "G", "T", "P", "E", "Z", "Y"];
    let mut unit = base;
    for prefix in &prefixes[..7] {
        unit *= base;
        if bytes < unit {
            return Ok(size(base * bytes / unit, prefix, binary));
        }
    }
    Ok(size(base * bytes / (unit * base), prefixes[7], binary))
}

fn size(amount: f64, prefix: &str, binary: bool) -> String {
    if binary {
        format!("{amount:.1} {}iB", prefix.to_uppercase())
    } else {
        format!("{amount:.1} {prefix}B")
    }
}
