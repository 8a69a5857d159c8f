//! Filters that lay out text: `wordcount`, `indent`, `truncate`, `wordwrap`, `center`.

use minijinja::Error;
use minijinja::value::Value;

use super::args::{Args, Given};
use super::characters::is_space;
use super::python::{check_len, text};
use crate::jinja::filter_args::{text_argument, width_argument};

/// Runs of letters, digits and underscores.
pub(super) fn wordcount(value: &Value) -> Result<usize, Error> {
    let text = text(value)?;
    let is_word = |c: char| c == '_' || c.is_alphanumeric();
    Ok(text.split(|c| !is_word(c)).filter(|word| !word.is_empty()).count())
}

pub(super) fn indent(value: &Value, args: Given) -> Result<String, Error> {
    let mut args = Args::of(args)?;
    let indentation = match args.take("width")? {
        None => " ".repeat(4),
        Some(width) => match width.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(super::python::check_width(i64::try_from(width)?)?),
        },
    };
    let (first, blank) = (args.flag("first")?, args.flag("blank")?);
    args.finish()?;
    let text = text(value)? + "\n";
    let mut out = String::new();
    for (i, line) in super::methods::split_lines(&text, false).into_iter().enumerate() {
        check_len(out.len() + indentation.len() + line.len())?;
        if i > 0 {
            out.push('\n');
        }
        let is_indented = if i == 0 { first } else { blank || !line.is_empty() };
        if is_indented {
            out.push_str(&indentation);
        }
        out.push_str(line);
    }
    Ok(out)
}

pub(super) fn truncate(value: &Value, args: Given) -> Result<String, Error> {
    let mut args = Args::of(args)?;
    let length = usize::try_from(args.integer("length")?.unwrap_or(255)).unwrap_or(0);
    let kill_words = args.flag("killwords")?;
    let end = text_argument(&mut args, "end", "...")?;
    let leeway = usize::try_from(args.integer("leeway")?.unwrap_or(5)).unwrap_or(0);
    args.finish()?;
    let text = text(value)?;
    if text.chars().count() <= length.saturating_add(leeway) {
        return Ok(text);
    }
    let n_kept = length.checked_sub(end.chars().count()).ok_or_else(|| {
        super::args::invalid(format!("truncate to {length} characters leaves no room for {end:?}"))
    })?;
    let kept: String = text.chars().take(n_kept).collect();
    let kept = match kept.rsplit_once(' ') {
        Some((before, _)) if !kill_words => before.to_owned(),
        _ => kept,
    };
    Ok(kept + &end)
}

pub(super) fn center(value: &Value, args: Given) -> Result<String, Error> {
    let mut args = Args::of(args)?;
    let width = width_argument(&mut args, "width", 80)?;
    args.finish()?;
    let text = text(value)?;
    let missing = width.saturating_sub(text.chars().count());
    let left = missing / 2 + (missing & width & 1);
    Ok(format!("{}{text}{}", " ".repeat(left), " ".repeat(missing - left)))
}

/// Breaks every line of a text as Python's `textwrap` does.
pub(super) fn wordwrap(value: &Value, args: Given) -> Result<String, Error> {
    let mut args = Args::of(args)?;
    let width = width_argument(&mut args, "width", 79)?.max(1);
    let break_words = args.take("break_long_words")?.is_none_or(|value| value.is_true());
    let separator = args.text("wrapstring")?.unwrap_or_else(|| String::from("\n"));
    let break_hyphens = args.take("break_on_hyphens")?.is_none_or(|value| value.is_true());
    args.finish()?;
    let text = text(value)?;
    let mut lines = Vec::new();
    for line in super::methods::split_lines(&text, false) {
        wrap_line(&mut lines, chunks(line, break_hyphens), width, break_words);
    }
    check_len(text.len().saturating_add(lines.len().saturating_mul(separator.len())))?;
    Ok(lines.join(&separator))
}

/// Words, the spaces between them, and the parts of words with hyphens.
fn chunks(line: &str, break_hyphens: bool) -> std::collections::VecDeque<String> {
    let mut chunks = std::collections::VecDeque::new();
    let mut rest = line;
    while let Some(c) = rest.chars().next() {
        let is_blank = is_space(c);
        let end = rest.find(|c| is_space(c) != is_blank).unwrap_or(rest.len());
        let (run, tail) = rest.split_at(end);
        rest = tail;
        if !is_blank && break_hyphens {
            chunks.extend(hyphenated(run).into_iter().map(str::to_owned));
        } else {
            chunks.push_back(run.to_owned());
        }
    }
    chunks
}

/// A word cut after hyphens between letters.
fn hyphenated(word: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut start = 0;
    for (at, _) in word.match_indices('-') {
        let before = word[start..at].chars().rev().take(2).collect::<Vec<_>>();
        let after = word[at + 1..].chars().take(2).collect::<Vec<_>>();
        let is_letter = |c: &char| c.is_alphabetic();
        let is_cut = before.len() == 2
            && before.iter().all(is_letter)
            && after.len() == 2
            && after.iter().all(is_letter);
        if is_cut {
            parts.push(&word[start..=at]);
            start = at + 1;
        }
    }
    parts.push(&word[start..]);
    parts
}

fn wrap_line(
    lines: &mut Vec<String>,
    mut chunks: std::collections::VecDeque<String>,
    width: usize,
    break_words: bool,
) {
    if chunks.is_empty() {
        lines.push(String::new());
        return;
    }
    let is_blank = |chunk: &String| chunk.chars().all(is_space);
    let mut is_first = true;
    while !chunks.is_empty() {
        let (mut line, mut len) = (Vec::new(), 0);
        if !is_first && chunks.front().is_some_and(is_blank) {
            chunks.pop_front();
        }
        while let Some(chunk) = chunks.front() {
            let n = chunk.chars().count();
            if len + n > width {
                break;
            }
            len += n;
            line.extend(chunks.pop_front());
        }
        if let Some(chunk) = chunks.front_mut()
            && chunk.chars().count() > width
        {
            let room = width - len;
            if break_words {
                let at = chunk
                    .char_indices()
                    .nth(room.max(usize::from(len == 0)))
                    .map_or(chunk.len(), |(at, _)| at);
                let tail = chunk.split_off(at);
                line.push(std::mem::replace(chunk, tail));
            } else if line.is_empty() {
                line.extend(chunks.pop_front());
            }
        }
        if line.last().is_some_and(is_blank) && line.len() > 1
            || (!is_first && line.last().is_some_and(is_blank))
        {
            line.pop();
        }
        if !line.is_empty() {
            lines.push(line.concat());
        }
        is_first = false;
    }
}
