//! How many values JSON has, counted before it is parsed.
//!
//! A parsed value takes about 100 bytes, a message of a few characters 700: two bytes of a body
//! can become a hundred of memory.

/// Values that a body may have; a conversation of 200,000 tokens has some thousands. Parsed, as
/// many take at most 60 MB.
pub(crate) const MAX_VALUES: usize = 250_000;

/// The number of values and containers in a JSON text, in one pass. Of a text that is no JSON it is
/// any number.
pub(crate) fn count(json: &[u8]) -> usize {
    let mut n_values = 1;
    let mut bytes = json.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b',' | b'[' | b'{' => n_values += 1,
            b'"' => skip_string(&mut bytes),
            _ => {}
        }
    }
    n_values
}

/// Goes behind the end of a string.
fn skip_string(bytes: &mut std::slice::Iter<'_, u8>) {
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => return,
            b'\\' => drop(bytes.next()),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_in_texts_are_no_values() {
        assert_eq!(count(br#""a,[{,\",""#), 1);
        assert_eq!(count(br#"{"a": [1, 2, {"b": "c,d"}], "e\\": null}"#), 7);
        assert_eq!(count(b"[[[["), 5);
        assert_eq!(count(br#""\"#), 1);
    }
}
