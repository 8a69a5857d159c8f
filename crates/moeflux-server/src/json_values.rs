//! What JSON takes when it is parsed, estimated before.
//!
//! Two bytes of a body can become some hundred of memory. JSON in a string is counted like that around it: arguments
//! of calls and schemas are texts that are parsed later.

/// Values that a body may have; a conversation of 200,000 tokens has some thousands.
pub(crate) const MAX_VALUES: usize = 200_000;

/// Bytes of a number that follows another one, as in prompts of token ids, which are parsed once.
const NUMBER_BYTES: usize = 80;

/// Bytes of another value, and what comes to it for an object with a key. They are parsed, made a conversation,
/// and rendered: about three copies.
const VALUE_BYTES: usize = 200;
const OBJECT_BYTES: usize = 1200;

/// What a JSON text takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parsed {
    /// Values and containers.
    pub(crate) n_values: usize,
    /// Bytes of all of them, texts included.
    pub(crate) bytes: usize,
}

/// What a JSON text takes when it is parsed, found in one pass. Of a text that is no JSON it is any number.
pub(crate) fn parsed(json: &[u8]) -> Parsed {
    let mut count = Count { n_values: 1, n_numbers: 0, n_objects: 0 };
    let mut bytes = json.iter();
    let mut before = b' ';
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => count.string(&mut Text { bytes: &mut bytes }),
            _ => count.add(*byte),
        }
        if *byte == b',' && before.is_ascii_digit() {
            let next = bytes.as_slice().iter().find(|byte| !byte.is_ascii_whitespace());
            count.n_numbers += usize::from(next.is_some_and(u8::is_ascii_digit));
        }
        if !byte.is_ascii_whitespace() {
            before = *byte;
        }
    }
    let Count { n_values, n_numbers, n_objects } = count;
    let bytes = (n_values - n_numbers).saturating_mul(VALUE_BYTES)
        + n_numbers.saturating_mul(NUMBER_BYTES)
        + n_objects.saturating_mul(OBJECT_BYTES);
    Parsed { n_values, bytes: bytes.saturating_add(json.len()) }
}

struct Count {
    n_values: usize,
    /// Of these, numbers that follow another outside of strings.
    n_numbers: usize,
    n_objects: usize,
}

impl Count {
    /// Counts a byte outside of strings.
    fn add(&mut self, byte: u8) {
        self.n_values += usize::from(matches!(byte, b',' | b'[' | b'{'));
        self.n_objects += usize::from(byte == b'{');
    }

    /// Goes behind the end of a string, and counts what is in one that begins as a container does.
    fn string(&mut self, text: &mut Text<'_, '_>) {
        let first = text.by_ref().find(|byte| !byte.is_ascii_whitespace());
        let Some(first @ (b'[' | b'{')) = first else { return text.for_each(drop) };
        self.add(first);
        let mut is_inside = false;
        while let Some(byte) = text.next() {
            match byte {
                b'"' => is_inside = !is_inside,
                b'\\' if is_inside => drop(text.next()),
                _ if !is_inside => self.add(byte),
                _ => {}
            }
        }
    }
}

/// The bytes of a string without escapes, up to its end. A character that is not of ASCII is any.
struct Text<'a, 'b> {
    bytes: &'a mut std::slice::Iter<'b, u8>,
}

impl Iterator for Text<'_, '_> {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        match self.bytes.next()? {
            b'"' => None,
            b'\\' => Some(match self.bytes.next()? {
                b'u' => {
                    let digits = self.bytes.as_slice().get(..4)?;
                    *self.bytes = self.bytes.as_slice()[4..].iter();
                    let code = std::str::from_utf8(digits).ok();
                    let code = code.and_then(|digits| u8::from_str_radix(digits, 16).ok());
                    code.unwrap_or(b'?')
                }
                b'n' | b't' | b'r' => b' ',
                other => *other,
            }),
            other => Some(*other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn n_values(json: &str) -> usize {
        parsed(json.as_bytes()).n_values
    }

    #[test]
    fn commas_in_texts_are_no_values() {
        assert_eq!(n_values(r#""a,[{,\",""#), 1);
        assert_eq!(n_values(r#"{"a": [1, 2, {"b": "c,d"}], "e\\": null}"#), 7);
        assert_eq!(n_values("[[[["), 5);
        assert_eq!(n_values(r#""\"#), 1);
    }

    #[test]
    fn values_in_texts_that_are_json_count() {
        for (json, want) in [
            (r#""[1,2,3]""#, 4),
            (r#"{"arguments": " \n{\"a\": [0, 0], \"b,\\\"[\": 1}"}"#, 6),
            (r#""\u005b1\u002c2]""#, 3),
            (r#""a [1,2]""#, 1),
            (r#"["[", "{\"a\":1", 1]"#, 6),
            (r#""[\u00""#, 2),
        ] {
            assert_eq!(n_values(json), want, "{json}");
        }
    }

    #[test]
    fn objects_take_more_than_numbers() {
        let numbers = parsed(&b"0,".repeat(1000));
        assert_eq!(numbers.bytes, 999 * NUMBER_BYTES + 2 * VALUE_BYTES + 2000);
        let objects = parsed(&br#"{"a":0},"#.repeat(1000));
        assert_eq!(objects.bytes, 2001 * VALUE_BYTES + 1000 * OBJECT_BYTES + 8000);
    }
}
