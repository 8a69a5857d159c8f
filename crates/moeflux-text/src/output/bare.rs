//! Arguments of a call in JSON's structure whose names have no quotes and whose strings stand
//! between quotes of their own, without escapes: `{key:<|"|>text<|"|>,list:[1,true]}`.

use serde_json::Value;

use super::arguments::{escaped, json_constant};
use super::scan::{Found, Pending};

/// Follows one object to its end and writes it as JSON text.
#[derive(Clone, Debug)]
pub(super) struct BareSpan {
    /// Stands at both ends of a string.
    quote: String,
    /// Brackets that are open, each by what closes it.
    open: Vec<char>,
    /// Text since the last mark: a name, a number or a constant.
    word: String,
    /// What ends the string that has begun.
    string: Option<StringEnd>,
    /// Whether `{` is written, which the caller has taken.
    is_begun: bool,
}

/// What ends a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StringEnd {
    /// The quotes of this notation.
    Quote,
    /// The quote of JSON, with its escapes, which models write now and then.
    Json {
        /// Whether the next character belongs to an escape.
        is_escaped: bool,
    },
}

/// Marks between strings and words, after the quotes of the notation.
const MARKS: [&str; 7] = ["\"", "{", "[", "}", "]", ":", ","];

impl BareSpan {
    /// After the `{` of an object.
    pub(super) fn new(quote: &str) -> BareSpan {
        BareSpan {
            quote: quote.to_owned(),
            open: vec!['}'],
            word: String::new(),
            string: None,
            is_begun: false,
        }
    }

    /// Takes as much of the object as is there; whether it has ended.
    pub(super) fn take(&mut self, pending: &mut Pending) -> (String, bool) {
        let mut out = String::new();
        if !self.is_begun {
            self.is_begun = true;
            out.push('{');
        }
        while !self.open.is_empty() {
            let goes_on = match self.string {
                Some(StringEnd::Quote) => self.quoted(pending, &mut out),
                Some(StringEnd::Json { is_escaped }) => {
                    self.json_string(pending, is_escaped, &mut out)
                }
                None => self.mark(pending, &mut out),
            };
            if !goes_on {
                return (out, false);
            }
        }
        (out, true)
    }

    /// Takes text of a string; whether it has ended.
    fn quoted(&mut self, pending: &mut Pending, out: &mut String) -> bool {
        let Found { before, marker } = pending.until(&[&self.quote]);
        *out += &escaped(&before);
        if marker.is_some() {
            out.push('"');
            self.string = None;
        }
        marker.is_some()
    }

    /// Takes a character of a string of JSON; whether there was one.
    fn json_string(&mut self, pending: &mut Pending, is_escaped: bool, out: &mut String) -> bool {
        let Some(c) = pending.next_char() else { return false };
        self.string = match c {
            _ if is_escaped => Some(StringEnd::Json { is_escaped: false }),
            '"' => None,
            _ => Some(StringEnd::Json { is_escaped: c == '\\' }),
        };
        // Models leave line ends as they are.
        if c.is_control() {
            *out += &escaped(c.encode_utf8(&mut [0; 4]))
        } else {
            out.push(c)
        }
        true
    }

    /// Takes text up to the next mark, and the mark; whether there was one.
    fn mark(&mut self, pending: &mut Pending, out: &mut String) -> bool {
        let mut marks = vec![&*self.quote];
        marks.extend(MARKS);
        let Found { before, marker } = pending.until(&marks);
        self.word += &before;
        let Some(mark) = marker.map(|i| marks[i]) else { return false };
        let word = std::mem::take(&mut self.word);
        let word = word.trim();
        match mark {
            ":" => {
                if !word.is_empty() {
                    *out += &Value::from(word).to_string();
                }
                *out += ": ";
            }
            "," => *out += &(value(word) + ", "),
            "{" | "[" => {
                out.push_str(mark);
                self.open.push(if mark == "{" { '}' } else { ']' });
            }
            "}" | "]" => {
                *out += &value(word);
                out.extend(self.open.pop());
            }
            quote => {
                out.push('"');
                let is_json = quote == "\"";
                self.string = Some(if is_json {
                    StringEnd::Json { is_escaped: false }
                } else {
                    StringEnd::Quote
                });
            }
        }
        true
    }
}

/// A value that is no string, as JSON; nothing for no text.
fn value(word: &str) -> String {
    if word.is_empty() {
        return String::new();
    }
    match serde_json::from_str::<Value>(json_constant(word)) {
        Ok(value) => value.to_string(),
        Err(_) => Value::from(word).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The object, from pieces of every size.
    #[track_caller]
    fn check(text: &str, expected: &Value) {
        let chars: Vec<char> = text.chars().collect();
        for size in 1..=chars.len() {
            let mut span = BareSpan::new("<|\"|>");
            let mut pending = Pending::default();
            let (mut out, mut is_done) = (String::new(), false);
            for piece in chars.chunks(size) {
                pending.push(&piece.iter().collect::<String>());
                if !is_done {
                    let (text, done) = span.take(&mut pending);
                    out += &text;
                    is_done = done;
                }
            }
            assert!(is_done, "{text}");
            assert_eq!(serde_json::from_str::<Value>(&out).ok().as_ref(), Some(expected), "{out}");
            assert_eq!(pending.take(), "<end>", "{text}");
        }
    }

    #[test]
    fn names_without_quotes_and_strings_between_tokens_become_json() {
        check("}<end>", &json!({}));
        check(
            "city:<|\"|>New \"York\", {a:b}\n\\<|\"|>,n:-1.5e3,flag:true,none:null}<end>",
            &json!({"city": "New \"York\", {a:b}\n\\", "n": -1.5e3, "flag": true, "none": null}),
        );
        check(
            "list:[1,<|\"|>a]<|\"|>,[],{k:<|\"|><|\"|>}],in:{a:{b:[{}]}}}<end>",
            &json!({"list": [1, "a]", [], {"k": ""}], "in": {"a": {"b": [{}]}}}),
        );
    }

    #[test]
    fn what_models_write_instead_is_understood() {
        check(
            " \"a\" : \"b \\\" }\" , <|\"|>c d<|\"|>:True, word: left open }<end>",
            &json!({"a": "b \" }", "c d": true, "word": "left open"}),
        );
    }
}
