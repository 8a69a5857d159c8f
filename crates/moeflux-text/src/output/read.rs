//! The markup of calls, read out of what a template makes of a conversation.
//!
//! Two calls with known names and arguments are rendered. What stands around their names and
//! arguments, and what both calls share, is the markup.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::syntax::{Calls, JsonCalls, TaggedCalls};

/// Names of the two calls.
pub(super) const NAMES: [&str; 2] = ["probe_first", "probe_second"];
/// Arguments of both calls: text and a number.
pub(super) const KEYS: [&str; 2] = ["probe_text", "probe_number"];
/// The text argument.
pub(super) const TEXT: &str = "Probe17";
/// The number argument.
pub(super) const NUMBER: i64 = 4171;

/// The arguments of both calls.
pub(super) fn arguments() -> Value {
    json!({KEYS[0]: TEXT, KEYS[1]: NUMBER})
}

/// What one call consists of, as places in the text of a turn.
struct CallPlaces<'t> {
    /// Before the name.
    before: &'t str,
    /// Between the name and the arguments, or all of them where they are tagged.
    inside: Inside<'t>,
    /// After the arguments.
    after: &'t str,
}

enum Inside<'t> {
    /// Between the name and the arguments.
    Json(&'t str),
    /// Before the first name of an argument, before its value, before the second name, and before
    /// its value.
    Tagged([&'t str; 4]),
}

/// Reads the markup of the calls of one answer. `opening` is how the template begins an answer,
/// `ids` are the identifiers of both calls. `None` where the text does not show calls in a form
/// that can be read.
pub(super) fn calls(turn: &str, opening: &str, ids: [&str; 2]) -> Option<Calls> {
    let second_at = turn.find(NAMES[1])?;
    let first = places(&turn[..second_at], NAMES[0])?;
    let second = places(turn, NAMES[1])?;
    // Identifiers are not written by models.
    let [between, tail] = [(first.after, ids[0]), (second.after, ids[1])]
        .map(|(text, id)| text.replace(&format!(", \"id\": \"{id}\""), ""));
    let has_id = between != first.after;
    let before = first.before.strip_prefix(opening).unwrap_or(first.before);
    match (first.inside, second.inside) {
        (Inside::Json(a), Inside::Json(b)) => {
            let after_name = numbered(a, b)?;
            let frame = Frame::read(before, &between, &tail)?;
            // A name ends with a token, or else with all that stands before the arguments.
            let name_ends = after_name.rfind('<').unwrap_or(0);
            let name_ends = after_name[name_ends..].to_owned();
            Some(Calls::Json(JsonCalls {
                section: frame.section,
                open: frame.open.into(),
                before_name: frame.before_name.into(),
                after_name: after_name.into(),
                name_ends: name_ends.into(),
                quote: None,
                has_id,
                after_arguments: frame.end.into(),
                close: frame.close.into(),
                between: frame.between.into(),
            }))
        }
        (Inside::Tagged([before_key, value, next_key, number]), Inside::Tagged(_)) => {
            let key = &next_key[next_key.rfind('<')?..];
            let after_name = before_key.strip_suffix(key)?;
            let value_end = next_key.strip_suffix(key)?;
            let between = between.strip_prefix(value_end)?;
            let frame = Frame::read(before, between, tail.strip_prefix(value_end)?)?;
            Some(Calls::Tagged(TaggedCalls {
                section: frame.section,
                open: frame.open.into(),
                before_name: frame.before_name.into(),
                after_name: after_name.to_owned().into(),
                key: key.to_owned().into(),
                value: value.to_owned().into(),
                json_value: (number != value).then(|| Cow::from(number.to_owned())),
                value_end: value_end.to_owned().into(),
                end: frame.end.into(),
                close: frame.close.into(),
                between: frame.between.into(),
            }))
        }
        _ => None,
    }
}

/// Finds a call by its name.
fn places<'t>(turn: &'t str, name: &str) -> Option<CallPlaces<'t>> {
    let at = turn.find(name)?;
    let rest = &turn[at + name.len()..];
    let before = &turn[..at];
    for (start, _) in rest.match_indices('{') {
        let mut values = serde_json::Deserializer::from_str(&rest[start..]).into_iter::<Value>();
        if values.next().and_then(Result::ok) == Some(arguments()) {
            let after = &rest[start + values.byte_offset()..];
            return Some(CallPlaces { before, inside: Inside::Json(&rest[..start]), after });
        }
    }
    let number = NUMBER.to_string();
    let mut parts = Vec::new();
    let mut rest = rest;
    for mark in [KEYS[0], TEXT, KEYS[1], &number] {
        let (part, after) = rest.split_once(mark)?;
        parts.push(part);
        rest = after;
    }
    let parts: [&str; 4] = parts.try_into().ok()?;
    Some(CallPlaces { before, inside: Inside::Tagged(parts), after: rest })
}

/// What stands between name and arguments, `#` for the number of the call.
fn numbered(first: &str, second: &str) -> Option<String> {
    if first == second {
        return Some(first.to_owned());
    }
    let with_mark = |text: &str| {
        let at = text.find(|c: char| c.is_ascii_digit())?;
        let rest = text[at..].trim_start_matches(|c: char| c.is_ascii_digit());
        Some(format!("{}#{rest}", &text[..at]))
    };
    let first = with_mark(first)?;
    (Some(&first) == with_mark(second).as_ref()).then_some(first)
}

/// What stands around calls.
struct Frame {
    section: Option<[Cow<'static, str>; 2]>,
    open: String,
    before_name: String,
    end: String,
    close: String,
    between: String,
}

impl Frame {
    /// `before` stands before the first name, `between` from the end of the first arguments to
    /// the second name, `tail` after the second arguments.
    fn read(before: &str, between: &str, tail: &str) -> Option<Frame> {
        let ending = common_prefix(between, tail);
        let ending = &ending[..ending.rfind(['>', ']', '}', '`']).map_or(0, |at| at + 1)];
        let (end, close) = ending.split_at(ending.rfind('<').unwrap_or(0));
        let next = &between[ending.len()..];
        let opening = common_suffix(before, next);
        let opening = &opening[opening.find(['<', '[', '{'])?..];
        let open_end = match opening.chars().next()? {
            '<' => opening.find('>'),
            '[' => opening.find(']'),
            _ => None,
        };
        let (open, before_name) = opening.split_at(open_end.map_or(opening.len(), |at| at + 1));
        let section = &before[..before.len() - opening.len()];
        // Thinking ends before calls begin.
        let section = section.rsplit_once("</think>").map_or(section, |(_, rest)| rest);
        let section = match section.trim_start() {
            "" => None,
            open => {
                let rest = &tail[ending.len()..];
                let close = rest.trim_start();
                let end = match close.chars().next()? {
                    '<' => close.find('>')? + 1,
                    c => c.len_utf8(),
                };
                let spaces = rest.len() - close.len();
                Some([open, &rest[..spaces + end]].map(|text| Cow::from(text.to_owned())))
            }
        };
        Some(Frame {
            section,
            open: open.to_owned(),
            before_name: before_name.to_owned(),
            end: end.to_owned(),
            close: close.to_owned(),
            between: next.strip_suffix(opening)?.to_owned(),
        })
    }
}

fn common_prefix<'t>(a: &'t str, b: &str) -> &'t str {
    let same = a.char_indices().zip(b.chars()).take_while(|((_, x), y)| x == y);
    let len = same.last().map_or(0, |((at, c), _)| at + c.len_utf8());
    &a[..len]
}

fn common_suffix<'t>(a: &'t str, b: &str) -> &'t str {
    let same = a.char_indices().rev().zip(b.chars().rev()).take_while(|((_, x), y)| x == y);
    let at = same.last().map_or(a.len(), |((at, _), _)| at);
    &a[at..]
}

#[cfg(test)]
mod tests {
    use super::super::ToolSyntax;
    use super::*;

    /// Two calls as a syntax of the table writes them.
    fn written(calls: &Calls) -> String {
        let [open, close] = calls.section().unwrap_or_default();
        let one = |name: &str, number: usize| match calls {
            Calls::Json(it) => format!(
                "{}{}{name}{}{}{}{}",
                it.open,
                it.before_name,
                it.after_name.replace('#', &number.to_string()),
                arguments(),
                it.after_arguments,
                it.close
            ),
            Calls::Tagged(it) => {
                let json_value = it.json_value.as_ref().unwrap_or(&it.value);
                format!(
                    "{}{}{name}{}{}{}{}{TEXT}{}{}{}{json_value}{NUMBER}{}{}{}",
                    it.open,
                    it.before_name,
                    it.after_name,
                    it.key,
                    KEYS[0],
                    it.value,
                    it.value_end,
                    it.key,
                    KEYS[1],
                    it.value_end,
                    it.end,
                    it.close
                )
            }
            Calls::Channels => unreachable!("written by turns"),
        };
        let [first, second] = [one(NAMES[0], 0), one(NAMES[1], 1)];
        format!("{open}{first}{}{second}{close}", calls.between())
    }

    #[test]
    fn what_a_syntax_writes_is_read_as_that_syntax() {
        for syntax in ToolSyntax::ALL {
            let calls = syntax.calls();
            // Those that templates show in ways of their own are known by their markup.
            if matches!(&calls, Calls::Channels | Calls::Json(JsonCalls { quote: Some(_), .. })) {
                continue;
            }
            let turn = format!("<|start|>\n<think></think>\n{}<|im_end|>\n", written(&calls));
            let read = super::calls(&turn, "<|start|>", ["a", "b"]).expect("calls are shown");
            assert!(read.is_like(&calls), "{syntax:?}: {read:?}");
            assert_eq!(ToolSyntax::named(&read), syntax);
        }
    }

    #[test]
    fn calls_in_a_list_are_read() {
        let turn = "[TOOL_CALLS] [{\"name\": \"probe_first\", \"arguments\": {\"probe_text\": \
                    \"Probe17\", \"probe_number\": 4171}, \"id\": \"a\"}, {\"name\": \
                    \"probe_second\", \"arguments\": {\"probe_text\": \"Probe17\", \
                    \"probe_number\": 4171}, \"id\": \"b\"}]</s>";
        let Some(Calls::Json(read)) = calls(turn, "", ["a", "b"]) else { panic!("no calls") };
        assert_eq!(read.section, Some(["[TOOL_CALLS] [", "]"].map(Cow::from)));
        assert_eq!([&*read.open, &*read.before_name], ["{\"name\": \"", ""]);
        assert_eq!([&*read.after_arguments, &*read.close, &*read.between], ["", "}", ", "]);
    }

    #[test]
    fn text_without_calls_is_not_read() {
        for turn in ["", "probe_first", "probe_first probe_second {}", "{\"probe_text\": 1}"] {
            assert!(calls(turn, "", ["a", "b"]).is_none(), "{turn}");
        }
    }
}
