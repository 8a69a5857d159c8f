//! `strftime_now`: the fields that Python has with glibc, in the C locale.

use std::fmt::Write;

use chrono::{Datelike, NaiveDateTime, Timelike};
use minijinja::Error;
use minijinja::value::Value;

use super::args::{Args, Given, expect_text};
use super::python::{check_len, check_width};

/// Fields that stand for several others.
const COMPOUND: [(char, &str); 8] = [
    ('c', "%a %b %e %H:%M:%S %Y"),
    ('D', "%m/%d/%y"),
    ('x', "%m/%d/%y"),
    ('F', "%Y-%m-%d"),
    ('r', "%I:%M:%S %p"),
    ('R', "%H:%M"),
    ('T', "%H:%M:%S"),
    ('X', "%H:%M:%S"),
];

/// `strftime_now` frozen at `now`, so that two renderings of one request agree.
pub(super) fn clock(now: NaiveDateTime) -> Value {
    Value::from_function(move |args: Given| -> Result<String, Error> {
        let mut args = Args::of(args)?;
        let format = args.need("format")?;
        args.finish()?;
        strftime(expect_text(&format, "the format")?, now)
    })
}

/// A field between its `%` and its letter.
#[derive(Default)]
struct Flags {
    /// `-` for none, `_` for spaces, `0` for zeros.
    padding: Option<char>,
    upper: bool,
    swapped: bool,
    width: Option<usize>,
}

fn strftime(format: &str, now: NaiveDateTime) -> Result<String, Error> {
    let mut out = String::new();
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        check_len(out.len())?;
        let field = &rest[at..];
        let len = write_field(&mut out, field, now)?;
        if len == 0 {
            // Not a field: it stays as it is.
            out.push('%');
        }
        rest = &field[len.max(1)..];
    }
    out.push_str(rest);
    Ok(out)
}

/// Writes the field at the beginning of `text`. The length of it, or 0 where it is no field.
fn write_field(out: &mut String, text: &str, now: NaiveDateTime) -> Result<usize, Error> {
    let mut flags = Flags::default();
    let mut chars = text.char_indices().skip(1).peekable();
    while let Some((_, flag)) = chars.next_if(|(_, c)| "_-0^#".contains(*c)) {
        match flag {
            '^' => flags.upper = true,
            '#' => flags.swapped = true,
            padding => flags.padding = Some(padding),
        }
    }
    let mut digits = String::new();
    while let Some((_, digit)) = chars.next_if(|(_, c)| c.is_ascii_digit()) {
        digits.push(digit);
    }
    if !digits.is_empty() {
        flags.width = Some(check_width(digits.parse().unwrap_or(i64::MAX))?);
    }
    // Other calendars and digits, which the C locale does not have.
    let _ = chars.next_if(|(_, c)| matches!(c, 'E' | 'O'));
    let Some((at, letter)) = chars.next() else { return Ok(0) };
    let is_written = write_value(out, letter, &flags, now)?;
    Ok(if is_written { at + letter.len_utf8() } else { 0 })
}

fn write_value(
    out: &mut String,
    letter: char,
    flags: &Flags,
    now: NaiveDateTime,
) -> Result<bool, Error> {
    if let Some(text) = words(letter, flags, now)? {
        let text = if flags.upper { text.to_uppercase() } else { text };
        let missing = flags.width.unwrap_or(0).saturating_sub(text.chars().count());
        let padding = if flags.padding == Some('0') { "0" } else { " " };
        out.push_str(&padding.repeat(missing));
        out.push_str(&text);
        return Ok(true);
    }
    let Some((value, width, padding)) = number(letter, now) else { return Ok(false) };
    let width = flags.width.unwrap_or(width);
    // Writing to a String does not fail.
    let _ = match flags.padding.unwrap_or(padding) {
        '-' => write!(out, "{value}"),
        '_' => write!(out, "{value:width$}"),
        _ => write!(out, "{value:0width$}"),
    };
    Ok(true)
}

/// Fields that are words, or made of others.
fn words(letter: char, flags: &Flags, now: NaiveDateTime) -> Result<Option<String>, Error> {
    if let Some((_, format)) = COMPOUND.iter().find(|(compound, _)| *compound == letter) {
        return strftime(format, now).map(Some);
    }
    let chrono = |format: &str| now.format(format).to_string();
    let text = match letter {
        'A' | 'a' | 'B' | 'b' | 'h' => {
            let name = chrono(&format!("%{letter}"));
            if flags.swapped { name.to_uppercase() } else { name }
        }
        'p' if flags.swapped => chrono("%P"),
        'p' | 'P' => chrono(&format!("%{letter}")),
        'f' => format!("{:06}", now.nanosecond() / 1000 % 1_000_000),
        // The time of a computer without a zone has neither an offset nor a name.
        'z' | 'Z' => String::new(),
        's' => now.and_utc().timestamp().to_string(),
        'n' => String::from("\n"),
        't' => String::from("\t"),
        '%' => String::from("%"),
        _ => return Ok(None),
    };
    Ok(Some(text))
}

/// Fields that are numbers: the value, how wide it is and what fills it up.
fn number(letter: char, now: NaiveDateTime) -> Option<(i64, usize, char)> {
    let (week_day, day) = (now.weekday(), now.ordinal0());
    let (from_sunday, from_monday) =
        (week_day.num_days_from_sunday(), week_day.num_days_from_monday());
    let hour = match now.hour() % 12 {
        0 => 12,
        hour => hour,
    };
    let year = i64::from(now.year());
    let iso = now.iso_week();
    let (value, width, padding) = match letter {
        'C' => return Some((year.div_euclid(100), 2, '0')),
        'Y' => return Some((year, 1, '0')),
        'y' => return Some((year.rem_euclid(100), 2, '0')),
        'G' => return Some((i64::from(iso.year()), 1, '0')),
        'g' => return Some((i64::from(iso.year()).rem_euclid(100), 2, '0')),
        'd' => (now.day(), 2, '0'),
        'e' => (now.day(), 2, '_'),
        'H' => (now.hour(), 2, '0'),
        'I' => (hour, 2, '0'),
        'j' => (day + 1, 3, '0'),
        'k' => (now.hour(), 2, '_'),
        'l' => (hour, 2, '_'),
        'm' => (now.month(), 2, '0'),
        'M' => (now.minute(), 2, '0'),
        'S' => (now.second(), 2, '0'),
        'u' => (from_monday + 1, 1, '0'),
        'w' => (from_sunday, 1, '0'),
        'U' => ((day + 7 - from_sunday) / 7, 2, '0'),
        'W' => ((day + 7 - from_monday) / 7, 2, '0'),
        'V' => (iso.week(), 2, '0'),
        _ => return None,
    };
    Some((i64::from(value), width, padding))
}
