//! Methods of Python's texts, lists and dicts.
//!
//! Those that minijinja's `pycompat` gives as Python does are taken from there.

use minijinja::value::{Tuple, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat;

use super::args::{Args, expect_text, invalid};
use super::characters::{is_decimal, is_digit, is_space};
use super::format::str_format;
use super::python::{check_len, check_width, is_printable};

/// What a value's `method` gives.
pub(super) fn call(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let found = match value.kind() {
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default();
            if method == "format" {
                return str_format(text, args).map(Value::from);
            }
            text_method(text, method, Args::new(args)?)?
        }
        ValueKind::Seq | ValueKind::Iterable => list_method(value, method, Args::new(args)?)?,
        ValueKind::Map if method == "copy" => {
            Args::new(args)?.finish()?;
            Some(value.clone())
        }
        ValueKind::Number | ValueKind::Bool => number_method(value, method, Args::new(args)?)?,
        _ => None,
    };
    match found {
        Some(result) => Ok(result),
        None => pycompat::unknown_method_callback(state, value, method, args),
    }
}

fn text_method(text: &str, method: &str, args: Args) -> Result<Option<Value>, Error> {
    if let Some(answer) = question(text, method) {
        args.finish()?;
        return Ok(Some(Value::from(answer)));
    }
    match method {
        "split" | "rsplit" | "splitlines" | "partition" | "rpartition" => {
            divide(text, method, args).map(Some)
        }
        "find" | "rfind" | "index" | "rindex" | "count" | "startswith" | "endswith" => {
            search(text, method, args).map(Some)
        }
        "zfill" | "center" | "ljust" | "rjust" | "expandtabs" => pad(text, method, args).map(Some),
        "strip" | "lstrip" | "rstrip" | "removeprefix" | "removesuffix" => {
            trim(text, method, args).map(Some)
        }
        "title" | "swapcase" | "casefold" | "capitalize" => {
            args.finish()?;
            Ok(Some(Value::from(change_case(text, method))))
        }
        "replace" => replace(text, args).map(Some),
        "join" => join(text, args).map(Some),
        "translate" => translate(text, args).map(Some),
        _ => Ok(None),
    }
}

/// Methods that ask something about all characters.
fn question(text: &str, method: &str) -> Option<bool> {
    let all = |is_one: fn(char) -> bool| !text.is_empty() && text.chars().all(is_one);
    Some(match method {
        "isdecimal" => all(is_decimal),
        "isdigit" => all(is_digit),
        "isspace" => all(is_space),
        "isprintable" => text.chars().all(is_printable),
        "istitle" => is_title(text),
        "isidentifier" => {
            let mut chars = text.chars();
            chars.next().is_some_and(|c| c == '_' || c.is_alphabetic())
                && chars.all(|c| c == '_' || c.is_alphanumeric())
        }
        _ => return None,
    })
}

fn is_title(text: &str) -> bool {
    let (mut is_after_letter, mut has_letter) = (false, false);
    for c in text.chars() {
        let is_wrong =
            (c.is_uppercase() && is_after_letter) || (c.is_lowercase() && !is_after_letter);
        if is_wrong {
            return false;
        }
        is_after_letter = c.is_uppercase() || c.is_lowercase();
        has_letter |= is_after_letter;
    }
    has_letter
}

fn texts<'a>(parts: impl IntoIterator<Item = &'a str>) -> Vec<Value> {
    parts.into_iter().map(Value::from).collect()
}

fn divide(text: &str, method: &str, mut args: Args) -> Result<Value, Error> {
    if method == "splitlines" {
        let keep = args.flag("keepends")?;
        args.finish()?;
        return Ok(Value::from(texts(split_lines(text, keep))));
    }
    if method.ends_with("partition") {
        let separator = args.need("sep")?;
        args.finish()?;
        let separator = expect_text(&separator, "the separator")?;
        check_separator(separator)?;
        let found = match method {
            "partition" => text.split_once(separator),
            _ => text.rsplit_once(separator),
        };
        let parts = match (found, method) {
            (Some((before, after)), _) => [before, separator, after],
            (None, "partition") => [text, "", ""],
            (None, _) => ["", "", text],
        };
        return Ok(Value::from(Tuple::from(texts(parts))));
    }
    let separator = args.text("sep")?;
    let limit = args.integer("maxsplit")?.and_then(|limit| usize::try_from(limit).ok());
    args.finish()?;
    let limit = limit.unwrap_or(usize::MAX - 1);
    let from_right = method == "rsplit";
    let Some(separator) = separator else {
        return Ok(Value::from(texts(split_spaces(text, limit, from_right))));
    };
    check_separator(&separator)?;
    let parts: Vec<&str> = if from_right {
        let mut parts: Vec<&str> = text.rsplitn(limit + 1, &separator).collect();
        parts.reverse();
        parts
    } else {
        text.splitn(limit + 1, &separator).collect()
    };
    Ok(Value::from(texts(parts)))
}

fn check_separator(separator: &str) -> Result<(), Error> {
    if separator.is_empty() { Err(invalid("empty separator")) } else { Ok(()) }
}

/// Words, at most `limit` of them apart from the rest.
fn split_spaces(text: &str, limit: usize, from_right: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = if from_right {
        text.trim_end_matches(is_space)
    } else {
        text.trim_start_matches(is_space)
    };
    while !rest.is_empty() {
        if parts.len() == limit {
            parts.push(rest);
            break;
        }
        if from_right {
            let start = rest.rfind(is_space).map_or(0, |at| at + char_len(rest, at));
            parts.push(&rest[start..]);
            rest = rest[..start].trim_end_matches(is_space);
        } else {
            let end = rest.find(is_space).unwrap_or(rest.len());
            parts.push(&rest[..end]);
            rest = rest[end..].trim_start_matches(is_space);
        }
    }
    if from_right {
        parts.reverse();
    }
    parts
}

fn char_len(text: &str, at: usize) -> usize {
    text[at..].chars().next().map_or(0, char::len_utf8)
}

/// Lines as Python ends them.
pub(super) fn split_lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let ends = [
        '\n', '\r', '\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}', '\u{2028}',
        '\u{2029}',
    ];
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(ends).unwrap_or(rest.len());
        let end_len = if rest[end..].starts_with("\r\n") { 2 } else { char_len(rest, end) };
        lines.push(if keep_ends { &rest[..end + end_len] } else { &rest[..end] });
        rest = &rest[end + end_len..];
    }
    lines
}

/// The part of a text between two positions in characters, and how many characters precede it.
/// Nothing if it begins after the text's end.
fn window(text: &str, start: Option<i64>, end: Option<i64>) -> Option<(&str, usize)> {
    let len = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    let clip = |at: i64| if at < 0 { at.saturating_add(len).max(0) } else { at };
    let (start, end) = (clip(start.unwrap_or(0)), clip(end.unwrap_or(len)).min(len));
    if start > len || end < start {
        return None;
    }
    let byte = |n: i64| {
        let n = usize::try_from(n).unwrap_or(usize::MAX);
        text.char_indices().nth(n).map_or(text.len(), |(at, _)| at)
    };
    Some((&text[byte(start)..byte(end)], usize::try_from(start).unwrap_or(0)))
}

fn search(text: &str, method: &str, mut args: Args) -> Result<Value, Error> {
    let wanted = args.need("sub")?;
    let (start, end) = (args.integer("start")?, args.integer("end")?);
    args.finish()?;
    let inside = window(text, start, end);
    if method == "startswith" || method == "endswith" {
        let is_found = |one: &str| {
            inside.is_some_and(|(part, _)| match method {
                "startswith" => part.starts_with(one),
                _ => part.ends_with(one),
            })
        };
        if !wanted.is_tuple() {
            return expect_text(&wanted, "what is searched").map(|one| Value::from(is_found(one)));
        }
        for one in wanted.try_iter()?.checked() {
            if is_found(expect_text(&one?, "what is searched")?) {
                return Ok(Value::from(true));
            }
        }
        return Ok(Value::from(false));
    }
    let wanted = expect_text(&wanted, "what is searched")?;
    if method == "count" {
        return Ok(Value::from(inside.map_or(0, |(part, _)| part.matches(wanted).count())));
    }
    let found = inside.and_then(|(part, skipped)| {
        let at = if method.starts_with('r') { part.rfind(wanted) } else { part.find(wanted) };
        at.map(|at| skipped + part[..at].chars().count())
    });
    match found {
        Some(at) => Ok(Value::from(at)),
        None if method.ends_with("index") => Err(invalid("substring not found")),
        None => Ok(Value::from(-1)),
    }
}

fn pad(text: &str, method: &str, mut args: Args) -> Result<Value, Error> {
    if method == "expandtabs" {
        let size = check_width(args.integer("tabsize")?.unwrap_or(8))?;
        args.finish()?;
        return expand_tabs(text, size).map(Value::from);
    }
    let width = args.need("width").and_then(i64::try_from)?;
    let fill = if method == "zfill" { None } else { args.text("fillchar")? };
    args.finish()?;
    let mut fill = fill.as_deref().unwrap_or(" ").chars();
    let (Some(fill), None) = (fill.next(), fill.next()) else {
        return Err(invalid("The fill character must be exactly one character long"));
    };
    let len = text.chars().count();
    if i64::try_from(len).is_ok_and(|len| len >= width) {
        return Ok(Value::from(text));
    }
    let width = check_width(width)?;
    let missing = width - len;
    let filled = |n: usize| fill.to_string().repeat(n);
    Ok(Value::from(match method {
        "zfill" => {
            let n_sign = usize::from(text.starts_with(['+', '-']));
            format!("{}{}{}", &text[..n_sign], "0".repeat(missing), &text[n_sign..])
        }
        "ljust" => format!("{text}{}", filled(missing)),
        "rjust" => format!("{}{text}", filled(missing)),
        _ => {
            let left = missing / 2 + (missing & width & 1);
            format!("{}{text}{}", filled(left), filled(missing - left))
        }
    }))
}

fn expand_tabs(text: &str, size: usize) -> Result<String, Error> {
    let mut out = String::new();
    let mut column = 0;
    for c in text.chars() {
        match c {
            '\t' => {
                let n = if size == 0 { 0 } else { size - column % size };
                check_len(out.len() + n)?;
                out.push_str(&" ".repeat(n));
                column += n;
            }
            '\n' | '\r' => {
                out.push(c);
                column = 0;
            }
            c => {
                out.push(c);
                column += 1;
            }
        }
    }
    Ok(out)
}

fn trim(text: &str, method: &str, mut args: Args) -> Result<Value, Error> {
    if let Some(part) = method.strip_prefix("remove") {
        let affix = args.need(part)?;
        args.finish()?;
        let affix = expect_text(&affix, part)?;
        let rest =
            if part == "prefix" { text.strip_prefix(affix) } else { text.strip_suffix(affix) };
        return Ok(Value::from(rest.unwrap_or(text)));
    }
    let chars = args.text("chars")?;
    args.finish()?;
    let is_trimmed = |c: char| match &chars {
        Some(chars) => chars.contains(c),
        None => is_space(c),
    };
    let text = if method == "rstrip" { text } else { text.trim_start_matches(is_trimmed) };
    Ok(Value::from(if method == "lstrip" { text } else { text.trim_end_matches(is_trimmed) }))
}

fn change_case(text: &str, method: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut is_after_letter = false;
    for (i, c) in text.chars().enumerate() {
        match method {
            "swapcase" if c.is_uppercase() => out.extend(c.to_lowercase()),
            "swapcase" => out.extend(c.to_uppercase()),
            // Folding differs from lower case where several letters stand for one.
            "casefold" if c == 'ß' || c == 'ẞ' => out.push_str("ss"),
            "casefold" => out.extend(c.to_lowercase()),
            "capitalize" if i == 0 => out.extend(c.to_uppercase()),
            "title" if !is_after_letter => out.extend(c.to_uppercase()),
            _ => out.extend(c.to_lowercase()),
        }
        is_after_letter = c.is_uppercase() || c.is_lowercase();
    }
    out
}

fn replace(text: &str, mut args: Args) -> Result<Value, Error> {
    let (old, new) = (args.need("old")?, args.need("new")?);
    let count = args.integer("count")?;
    args.finish()?;
    replace_text(text, expect_text(&old, "old")?, expect_text(&new, "new")?, count).map(Value::from)
}

/// `text.replace(old, new, count)`
pub(super) fn replace_text(
    text: &str,
    old: &str,
    new: &str,
    count: Option<i64>,
) -> Result<String, Error> {
    let count = count.and_then(|count| usize::try_from(count).ok()).unwrap_or(usize::MAX);
    let n_found = text.matches(old).take(count).count();
    check_len(text.len().saturating_add(n_found.saturating_mul(new.len())))?;
    Ok(text.replacen(old, new, count))
}

fn join(separator: &str, mut args: Args) -> Result<Value, Error> {
    let items = args.need("iterable")?;
    args.finish()?;
    let mut out = String::new();
    for (i, item) in items.try_iter()?.checked().enumerate() {
        let item = item?;
        let text = expect_text(&item, "what is joined")?;
        check_len(out.len() + separator.len() + text.len())?;
        if i > 0 {
            out.push_str(separator);
        }
        out.push_str(text);
    }
    Ok(Value::from(out))
}

fn translate(text: &str, mut args: Args) -> Result<Value, Error> {
    let table = args.need("table")?;
    args.finish()?;
    let mut out = String::new();
    for c in text.chars() {
        let found = table.get_item(&Value::from(u32::from(c)))?;
        match (found.as_str(), found.kind()) {
            (Some(text), _) => {
                check_len(out.len() + text.len())?;
                out.push_str(text);
            }
            (None, ValueKind::None) => {}
            (None, ValueKind::Undefined) => out.push(c),
            (None, _) => {
                let code = u32::try_from(found)?;
                out.push(
                    char::from_u32(code)
                        .ok_or_else(|| invalid(format!("{code} is no character")))?,
                );
            }
        }
    }
    Ok(Value::from(out))
}

fn list_method(value: &Value, method: &str, mut args: Args) -> Result<Option<Value>, Error> {
    match method {
        "copy" if !value.is_tuple() => {
            args.finish()?;
            Ok(Some(value.clone()))
        }
        "index" => {
            let wanted = args.need("value")?;
            let (start, end) = (args.integer("start")?, args.integer("stop")?);
            args.finish()?;
            let len = i64::try_from(value.len().unwrap_or(usize::MAX)).unwrap_or(i64::MAX);
            let clip = |at: i64| if at < 0 { at.saturating_add(len).max(0) } else { at };
            let (start, end) = (clip(start.unwrap_or(0)), clip(end.unwrap_or(len)));
            for (at, item) in (0..).zip(value.try_iter()?.checked()) {
                if item? == wanted && (start..end).contains(&at) {
                    return Ok(Some(Value::from(at)));
                }
            }
            Err(invalid("the value is not in the list"))
        }
        "count" => {
            let wanted = args.need("value")?;
            args.finish()?;
            let mut n = 0_i64;
            for item in value.try_iter()?.checked() {
                n += i64::from(item? == wanted);
            }
            Ok(Some(Value::from(n)))
        }
        _ => Ok(None),
    }
}

fn number_method(value: &Value, method: &str, args: Args) -> Result<Option<Value>, Error> {
    let result = match method {
        "is_integer" => value.is_integer() || f64::try_from(value.clone())?.fract() == 0.0,
        _ => return Err(Error::from(ErrorKind::UnknownMethod)),
    };
    args.finish()?;
    Ok(Some(Value::from(result)))
}
