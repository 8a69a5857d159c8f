//! The text that a tool is given, out of the arguments of a call as they come.

/// Reads the string of an object with one field: `{"input": "..."}`.
#[derive(Clone, Debug, Default)]
pub(super) struct Freeform {
    state: State,
    /// The beginning of an escape.
    escape: String,
    /// The first half of a character that is escaped in two halves.
    surrogate: Option<u16>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Before the colon.
    #[default]
    Name,
    /// Before the string's first quotation mark.
    Value,
    Text,
    End,
}

impl Freeform {
    /// More of the text, from more of the arguments.
    pub(super) fn push(&mut self, arguments: &str) -> String {
        let mut text = String::new();
        for c in arguments.chars() {
            match (self.state, c) {
                (State::Name, ':') => self.state = State::Value,
                (State::Value, '"') => self.state = State::Text,
                (State::Text, _) if !self.escape.is_empty() => self.escaped(c, &mut text),
                (State::Text, '\\') => self.escape.push(c),
                (State::Text, '"') => self.state = State::End,
                (State::Text, _) => text.push(c),
                _ => {}
            }
        }
        text
    }

    /// One more character of an escape.
    fn escaped(&mut self, c: char, text: &mut String) {
        self.escape.push(c);
        let is_unicode = self.escape.starts_with("\\u");
        if is_unicode && self.escape.len() < 6 {
            return;
        }
        let escape = std::mem::take(&mut self.escape);
        if !is_unicode {
            text.push(match c {
                'n' => '\n',
                't' => '\t',
                'r' => '\r',
                'b' => '\u{8}',
                'f' => '\u{c}',
                other => other,
            });
            return;
        }
        let unit = escape.get(2..).and_then(|digits| u16::from_str_radix(digits, 16).ok());
        let Some(unit) = unit else { return };
        let units = match self.surrogate.take() {
            Some(first) => vec![first, unit],
            None if (0xd800..0xdc00).contains(&unit) => {
                self.surrogate = Some(unit);
                return;
            }
            None => vec![unit],
        };
        let replaced = |c: Result<char, _>| c.unwrap_or(char::REPLACEMENT_CHARACTER);
        text.extend(char::decode_utf16(units).map(replaced));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn text_comes_out_as_it_went_in_wherever_pieces_end() {
        let given = "*** Begin \"Patch\"\n\tC:\\x: {\"input\": 1}\r\u{1} é 天 𝄞 \\u0041";
        let plain = json!({"input": given}).to_string();
        let escaped: String = plain
            .chars()
            .map(|c| {
                if c.is_ascii() {
                    c.to_string()
                } else {
                    let mut units = [0; 2];
                    c.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")).collect()
                }
            })
            .collect();
        for arguments in [plain, escaped] {
            for size in 1..8 {
                let chars: Vec<char> = arguments.chars().collect();
                let mut freeform = Freeform::default();
                let pieces = chars.chunks(size).map(|piece| piece.iter().collect::<String>());
                let text: String = pieces.map(|piece| freeform.push(&piece)).collect();
                assert_eq!(text, given, "{size}");
            }
        }
    }

    #[test]
    fn text_that_is_cut_is_what_came() {
        let mut freeform = Freeform::default();
        assert_eq!(freeform.push("{\"input\" : \"ab\\"), "ab");
        assert_eq!(freeform.push("nc\\u00"), "\nc");
    }
}
