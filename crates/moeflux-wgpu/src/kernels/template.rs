//! What kernels' texts leave to be filled in.
//!
//! Lines between `#if VALUE` and `#end` count where the value is not zero; `#else` turns that
//! round. Lines between `#each v VALUE` and `#end` are there this many times, with the count in
//! place of `$v`, and of a sum with it in `${v+VALUE}`. A value is a number or a constant's name,
//! or several with `*` and `/` between them.

use std::fmt::Write as _;

/// Drops the lines that do not count and repeats those that are repeated.
pub(super) fn preprocess(source: &str, consts: &[(&str, u32)]) -> String {
    let mut text = String::with_capacity(source.len());
    let lines: Vec<&str> = source.lines().collect();
    expand(&lines, consts, &mut Vec::new(), &mut text);
    text
}

/// `counts` are the variables of the repetitions around, and where they are.
fn expand(
    lines: &[&str],
    consts: &[(&str, u32)],
    counts: &mut Vec<(char, u32)>,
    text: &mut String,
) {
    let mut rest = lines;
    while let [line, after @ ..] = rest {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["#if", condition] => {
                let (body, other, behind) = parts(after);
                let lines = if value(condition, consts) == 0 { other } else { body };
                expand(lines, consts, counts, text);
                rest = behind;
            }
            ["#each", variable, times] => {
                let (body, _, behind) = parts(after);
                let variable = variable.chars().next().expect("a letter");
                for count in 0..value(times, consts) {
                    counts.push((variable, count));
                    expand(body, consts, counts, text);
                    counts.pop();
                }
                rest = behind;
            }
            _ => {
                put(line, consts, counts, text);
                rest = after;
            }
        }
    }
}

/// The lines up to `#else`, from there to `#end`, and after that.
fn parts<'a, 'b>(lines: &'a [&'b str]) -> (&'a [&'b str], &'a [&'b str], &'a [&'b str]) {
    let (mut depth, mut otherwise) = (0, None);
    for (i, line) in lines.iter().enumerate() {
        match line.split_whitespace().next() {
            Some("#if" | "#each") => depth += 1,
            Some("#else") if depth == 0 => otherwise = Some(i),
            Some("#end") if depth == 0 => {
                let body = otherwise.unwrap_or(i);
                return (&lines[..body], &lines[i.min(body + 1)..i], &lines[i + 1..]);
            }
            Some("#end") => depth -= 1,
            _ => {}
        }
    }
    panic!("every #if and #each has its #end");
}

/// Puts a line with its counts filled in.
fn put(line: &str, consts: &[(&str, u32)], counts: &[(char, u32)], text: &mut String) {
    let count = |name: char| {
        let known = counts.iter().find(|count| count.0 == name);
        known.unwrap_or_else(|| panic!("no repetition counts {name}: {line}")).1
    };
    let mut rest = line;
    while let Some((before, after)) = rest.split_once('$') {
        text.push_str(before);
        let (number, behind) = match after.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
            Some((sum, behind)) => {
                let (name, added) = sum.split_once('+').expect("a sum");
                let name = name.chars().next().expect("a letter");
                (count(name) + value(added, consts), behind)
            }
            None => {
                let name = after.chars().next().expect("a letter");
                (count(name), &after[name.len_utf8()..])
            }
        };
        write!(text, "{number}").expect("a string takes any text");
        rest = behind;
    }
    text.push_str(rest);
    text.push('\n');
}

/// A number, a constant, or several multiplied and divided from left to right.
pub(super) fn value(text: &str, consts: &[(&str, u32)]) -> u32 {
    let one = |text: &str| {
        let known = consts.iter().find(|constant| constant.0 == text).map(|constant| constant.1);
        known.or_else(|| text.parse().ok()).unwrap_or_else(|| panic!("no constant {text}"))
    };
    let mut result = 1;
    let mut divides = false;
    for part in text.split_inclusive(['*', '/']) {
        let operand = one(part.trim_end_matches(['*', '/']));
        result = if divides { result / operand } else { result * operand };
        divides = part.ends_with('/');
    }
    result
}
