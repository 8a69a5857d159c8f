//! Describes errors in JSON for users; the parser's messages name Rust types.

use serde_json::Error;
use serde_json::error::Category;

/// The position of an error in JSON, and a description of it.
pub fn json_problem(err: &Error) -> String {
    let text = err.to_string();
    let (line, column) = (err.line(), err.column());
    let message = text.strip_suffix(&format!(" at line {line} column {column}")).unwrap_or(&text);
    let problem = match err.classify() {
        Category::Eof => String::from("the text ends in the middle of it"),
        Category::Data => data_problem(message),
        Category::Syntax | Category::Io => syntax_problem(message),
    };
    // An error in a value that was parsed before has no position.
    if line == 0 { problem } else { format!("line {line}, column {column}: {problem}") }
}

fn syntax_problem(message: &str) -> String {
    let words = match message {
        "expected value" | "expected ident" => "no JSON value begins here",
        "expected `:`" => "a colon is missing after a name",
        "expected `,` or `}`" => "a comma or } is missing",
        "expected `,` or `]`" => "a comma or ] is missing",
        "key must be a string" => "a name in quotes is missing",
        "trailing comma" => "a comma follows the last item",
        "trailing characters" => "more text follows the end of the JSON",
        "recursion limit exceeded" => "lists and objects are nested too deep",
        "invalid number" => "this is no number of JSON",
        "number out of range" => "this number is too large",
        "invalid escape" => "this is no escape of JSON (a backslash is written \\\\)",
        "control character (\\u0000-\\u001F) found while parsing a string" => {
            "a string holds a control character or a line break (\\n)"
        }
        "invalid unicode code point" | "lone leading surrogate in hex escape" => {
            "a string is not Unicode"
        }
        other => other,
    };
    words.to_owned()
}

/// Describes errors such as "invalid type: string \"x\", expected u32".
fn data_problem(message: &str) -> String {
    let rest = ["invalid type: ", "invalid value: ", "invalid length "]
        .iter()
        .find_map(|start| message.strip_prefix(start));
    match rest.and_then(|rest| rest.rsplit_once(", expected ")) {
        Some((found, wanted)) => format!("{} where {} is needed", kind(found), kind(wanted)),
        None => match message.strip_prefix("missing field ") {
            Some(name) => format!("the field {name} is missing"),
            None => message.to_owned(),
        },
    }
}

/// The JSON name of a Rust or parser type; other text is returned unchanged.
fn kind(name: &str) -> String {
    let words = match name {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number from 0 on",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "map" | "a map" => "an object",
        "sequence" | "a sequence" => "a list",
        "unit value" | "unit" | "null" => "null",
        "a borrowed string" | "str" => "a string",
        "a boolean" => "true or false",
        _ => "",
    };
    if !words.is_empty() {
        return words.to_owned();
    }
    if name.starts_with("struct ") || name.starts_with("enum ") {
        return String::from("an object");
    }
    // A value comes with its type: `string "x"`, `integer `-3``, `floating point `1.5``.
    let value = ["string ", "integer ", "floating point ", "boolean "]
        .iter()
        .find_map(|start| name.strip_prefix(start));
    let value = value.map(|value| value.trim_matches('`'));
    value.unwrap_or(name).chars().take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn problem<T: serde::de::DeserializeOwned + std::fmt::Debug>(json: &str) -> String {
        json_problem(&serde_json::from_str::<T>(json).unwrap_err())
    }

    #[test]
    fn problems_are_said_in_the_words_of_json() {
        type Ids = Vec<Vec<u32>>;
        for (json, want) in [
            (r#"[[1, "x"]]"#, r#"line 1, column 8: "x" where a whole number from 0 on is needed"#),
            ("[[-3]]", "line 1, column 4: -3 where a whole number from 0 on is needed"),
            ("[1]", "line 1, column 2: 1 where a list is needed"),
            ("[[1.5]]", "line 1, column 5: 1.5 where a whole number from 0 on is needed"),
            ("{}", "line 1, column 0: an object where a list is needed"),
            ("[[1,]]", "line 1, column 5: a comma follows the last item"),
            ("[[1\n2]]", "line 2, column 1: a comma or ] is missing"),
            ("[[1], nil]", "line 1, column 8: no JSON value begins here"),
            ("[[1]", "line 1, column 4: the text ends in the middle of it"),
            ("[[1]] x", "line 1, column 7: more text follows the end of the JSON"),
        ] {
            assert_eq!(problem::<Ids>(json), want, "{json}");
        }
        let missing = problem::<serde_json::Value>("{\"a\" 1}");
        assert_eq!(missing, "line 1, column 6: a colon is missing after a name");
    }
}
