//! `text % values` and `str.format`.

use std::iter::Peekable;
use std::str::Chars;

use minijinja::formatting::{FormatStyle, format};
use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

use super::args::{Args, Given, expect_text, invalid};
use super::python::{check_len, check_width, push_escape, repr, text};

/// `text % values`, where `values` are a tuple, a dict or one value.
pub(super) fn percent_format(format: &str, values: &Value) -> Result<String, Error> {
    let is_tuple = values.is_tuple();
    let positional = if is_tuple {
        values.try_iter()?.checked().collect::<Result<Vec<_>, Error>>()?
    } else {
        vec![values.clone()]
    };
    let mut fields = Fields {
        chars: format.chars().peekable(),
        values,
        positional: positional.into_iter(),
        n_named: 0,
    };
    let mut out = String::new();
    while let Some(c) = fields.chars.next() {
        check_len(out.len())?;
        if c == '%' { fields.write_field(&mut out)? } else { out.push(c) }
    }
    // What Python can look up keys in may be left over.
    let may_be_left = !is_tuple && matches!(values.kind(), ValueKind::Map | ValueKind::Seq);
    if fields.positional.next().is_some() && !may_be_left && fields.n_named == 0 {
        return Err(invalid("not all arguments converted during string formatting"));
    }
    Ok(out)
}

/// The state of a `%` formatting.
struct Fields<'a> {
    chars: Peekable<Chars<'a>>,
    values: &'a Value,
    positional: std::vec::IntoIter<Value>,
    n_named: usize,
}

impl Fields<'_> {
    /// Writes the field after a `%`.
    fn write_field(&mut self, out: &mut String) -> Result<(), Error> {
        let named = self.key()?;
        let mut flags = String::new();
        while let Some(flag) = self.chars.next_if(|c| "#0- +".contains(*c)) {
            flags.push(flag);
        }
        let width = self.number()?;
        if width.is_some_and(|width| width < 0) {
            flags.push('-');
        }
        let width = check_width(width.map_or(0, i64::abs))?;
        let precision = match self.chars.next_if_eq(&'.') {
            Some(_) => Some(check_width(self.number()?.unwrap_or(0))?),
            None => None,
        };
        while self.chars.next_if(|c| "hlL".contains(*c)).is_some() {}
        let Some(conversion) = self.chars.next() else { return Err(invalid("incomplete format")) };
        if conversion == '%' {
            out.push('%');
            return Ok(());
        }
        let value = match named {
            Some(value) => value,
            None => self.next()?,
        };
        let spec = Spec { flags, width, precision, conversion };
        spec.write(out, &value)
    }

    fn next(&mut self) -> Result<Value, Error> {
        self.positional.next().ok_or_else(|| invalid("not enough arguments for format string"))
    }

    /// The value of `(key)`.
    fn key(&mut self) -> Result<Option<Value>, Error> {
        if self.chars.next_if_eq(&'(').is_none() {
            return Ok(None);
        }
        let mut key = String::new();
        let mut depth = 1;
        loop {
            let Some(c) = self.chars.next() else { return Err(invalid("incomplete format key")) };
            match c {
                '(' => depth += 1,
                ')' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                break;
            }
            key.push(c);
        }
        self.n_named += 1;
        if self.values.kind() != ValueKind::Map {
            return Err(invalid("format requires a mapping"));
        }
        let value = self.values.get_item(&Value::from(key.clone()))?;
        if value.is_undefined() {
            return Err(invalid(format!("the format names {key:?}, which is missing")));
        }
        Ok(Some(value))
    }

    /// A number, or the next value for `*`.
    fn number(&mut self) -> Result<Option<i64>, Error> {
        if self.chars.next_if_eq(&'*').is_some() {
            return self.next().and_then(i64::try_from).map(Some);
        }
        read_number(&mut self.chars)
    }
}

fn read_number(chars: &mut Peekable<Chars<'_>>) -> Result<Option<i64>, Error> {
    let mut digits = String::new();
    while let Some(digit) = chars.next_if(char::is_ascii_digit) {
        digits.push(digit);
    }
    if digits.is_empty() {
        return Ok(None);
    }
    digits.parse().map(Some).map_err(|_| invalid(format!("{digits} is too large in a format")))
}

/// A conversion of `%`.
struct Spec {
    flags: String,
    width: usize,
    precision: Option<usize>,
    conversion: char,
}

impl Spec {
    fn write(&self, out: &mut String, value: &Value) -> Result<(), Error> {
        let shown = match self.conversion {
            's' => text(value)?,
            'r' => repr(value)?,
            'a' => ascii(&repr(value)?),
            'c' => character(value)?,
            'd' | 'i' | 'u' => return self.write_number(out, 'd', &whole(value)?),
            'o' | 'x' | 'X' if value.is_integer() || value.kind() == ValueKind::Bool => {
                return self.write_number(out, self.conversion, &whole(value)?);
            }
            'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
                let x = f64::try_from(value.clone())?;
                return self.write_number(out, self.conversion, &Value::from(x));
            }
            _ => {
                return Err(invalid(format!(
                    "format character {:?} does not take a {}",
                    self.conversion,
                    value.kind()
                )));
            }
        };
        let shown: String = shown.chars().take(self.precision.unwrap_or(usize::MAX)).collect();
        let missing = self.width.saturating_sub(shown.chars().count());
        let padding = " ".repeat(missing);
        if self.flags.contains('-') {
            out.extend([shown, padding]);
        } else {
            out.extend([padding, shown]);
        }
        Ok(())
    }

    fn write_number(&self, out: &mut String, conversion: char, value: &Value) -> Result<(), Error> {
        let mut spec = format!("%{}", self.flags);
        if self.width > 0 {
            spec += &self.width.to_string();
        }
        if let Some(precision) = self.precision {
            spec += &format!(".{precision}");
        }
        spec.push(conversion);
        *out += &format(FormatStyle::Printf, &spec, std::slice::from_ref(value))?;
        Ok(())
    }
}

fn whole(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Bool => Ok(Value::from(i64::from(value.is_true()))),
        ValueKind::Number if value.is_integer() => Ok(value.clone()),
        ValueKind::Number => {
            let x = f64::try_from(value.clone())?.trunc();
            // Beyond 2^127 the digits are not exact any more.
            if x.abs() < 1.7e38 {
                #[expect(clippy::cast_possible_truncation, reason = "the bound is checked")]
                return Ok(Value::from(x as i128));
            }
            Err(invalid("the number is too large for an integer"))
        }
        kind => Err(invalid(format!("a number is required, not {kind}"))),
    }
}

fn character(value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return match text.chars().count() {
            1 => Ok(text.to_owned()),
            _ => Err(invalid("%c requires a number or one character")),
        };
    }
    let code = u32::try_from(value.clone())?;
    char::from_u32(code).map(String::from).ok_or_else(|| invalid(format!("{code} is no character")))
}

/// `ascii()`, of what `repr` gave.
fn ascii(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if c.is_ascii() { out.push(c) } else { push_escape(&mut out, c) }
    }
    out
}

/// `template.format(…)`
pub(super) fn str_format(template: &str, args: &[Value]) -> Result<String, Error> {
    let mut args = Args::new(args)?;
    let positional: Vec<Value> = std::iter::from_fn(|| args.positional()).collect();
    let mut fields = Replacements { positional, named: args.keywords()?, next: 0 };
    fields.fill(template, 0)
}

/// The arguments of `str.format`.
struct Replacements {
    positional: Vec<Value>,
    named: Vec<(String, Value)>,
    /// Index of the next field without a name.
    next: usize,
}

impl Replacements {
    fn fill(&mut self, template: &str, depth: usize) -> Result<String, Error> {
        if depth > 2 {
            return Err(invalid("Max string recursion exceeded"));
        }
        let mut out = String::new();
        let mut rest = template;
        while let Some(at) = rest.find(['{', '}']) {
            out.push_str(&rest[..at]);
            check_len(out.len())?;
            let (brace, tail) = (&rest[at..=at], &rest[at + 1..]);
            if tail.starts_with(brace) {
                out.push_str(brace);
                rest = &tail[1..];
                continue;
            }
            let end = match brace {
                "{" => end_of_field(tail),
                _ => None,
            };
            let Some(end) = end else {
                return Err(invalid("a brace in the format string is single"));
            };
            self.write_field(&mut out, &tail[..end], depth)?;
            rest = &tail[end + 1..];
        }
        out.push_str(rest);
        Ok(out)
    }

    fn write_field(&mut self, out: &mut String, field: &str, depth: usize) -> Result<(), Error> {
        let (head, spec) = field.split_once(':').unwrap_or((field, ""));
        let (name, conversion) = head.split_once('!').unwrap_or((head, ""));
        let value = self.look_up(name)?;
        let spec = self.fill(spec, depth + 1)?;
        let value = match conversion {
            "" => value,
            "s" => Value::from(text(&value)?),
            "r" => Value::from(repr(&value)?),
            "a" => Value::from(ascii(&repr(&value)?)),
            _ => return Err(invalid(format!("unknown conversion {conversion:?}"))),
        };
        *out += &format_value(&value, &spec)?;
        Ok(())
    }

    fn look_up(&mut self, path: &str) -> Result<Value, Error> {
        let end = path.find(['.', '[']).unwrap_or(path.len());
        let (name, mut rest) = path.split_at(end);
        let index = if name.is_empty() {
            self.next += 1;
            Some(self.next - 1)
        } else {
            name.parse::<usize>().ok()
        };
        let found = match index {
            Some(index) => self.positional.get(index).cloned(),
            None => self.named.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone()),
        };
        let mut value = found.ok_or_else(|| invalid(format!("no argument for {{{path}}}")))?;
        while let Some(first) = rest.chars().next() {
            let (key, tail) = match first {
                '[' => rest[1..].split_once(']').ok_or_else(|| invalid("a [ is not closed"))?,
                _ => {
                    let end = rest[1..].find(['.', '[']).map_or(rest.len(), |end| end + 1);
                    (&rest[1..end], &rest[end..])
                }
            };
            let key = key.parse::<i64>().map_or_else(|_| Value::from(key), Value::from);
            value = value.get_item(&key)?;
            if value.is_undefined() {
                return Err(invalid(format!("{{{path}}} names something that is missing")));
            }
            rest = tail;
        }
        Ok(value)
    }
}

/// Where the brace is that closes a field.
fn end_of_field(text: &str) -> Option<usize> {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => return Some(at),
            '}' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// `format(value, spec)`
fn format_value(value: &Value, spec: &str) -> Result<String, Error> {
    if spec.is_empty() {
        return text(value);
    }
    let mut chars = spec.chars().peekable();
    while chars.peek().is_some() {
        check_width(read_number(&mut chars)?.unwrap_or(0))?;
        chars.next();
    }
    let is_scalar = matches!(value.kind(), ValueKind::Number | ValueKind::Bool | ValueKind::String);
    if !is_scalar {
        return Err(invalid(format!("a {} takes no format", value.kind())));
    }
    let format_one = |spec: &str, value: Value| {
        format(FormatStyle::StrFormat, &format!("{{:{spec}}}"), &[value]).map_err(|err| {
            Error::new(ErrorKind::InvalidOperation, format!("format {spec:?}: {err}"))
        })
    };
    let Some(spec) = spec.strip_suffix('%') else { return format_one(spec, value.clone()) };
    // One column less, for the sign at the end.
    let percent = Value::from(f64::try_from(value.clone())? * 100.0);
    let digits = spec.rfind('.').map_or(spec.len(), |dot| dot);
    let start = spec[..digits].rfind(|c: char| !c.is_ascii_digit()).map_or(0, |last| last + 1);
    let width = spec[start..digits].parse::<usize>().map(|width| width.saturating_sub(1));
    let width = width.map(|width| width.to_string()).unwrap_or_default();
    Ok(format_one(&format!("{}{width}{}f", &spec[..start], &spec[digits..]), percent)? + "%")
}

/// What a format filter gets: a text and the values after it, or named ones.
pub(super) fn format_filter(format: &Value, args: Given) -> Result<String, Error> {
    let format = expect_text(format, "the format")?;
    let mut args = Args::of(args)?;
    let positional: Vec<Value> = std::iter::from_fn(|| args.positional()).collect();
    let named = args.keywords()?;
    match (positional.is_empty(), named.is_empty()) {
        (false, false) => Err(invalid("format takes values by position or by name, not both")),
        (_, false) => percent_format(format, &Value::from_pairs(named)),
        _ => percent_format(format, &Value::from(minijinja::value::Tuple::from(positional))),
    }
}
