//! Escapes of JSON that name half a pair of surrogates.

/// Replaces the escapes of surrogates without a partner (`\ud83d`, or a pair in reverse) by that of
/// U+FFFD, which has the same length. `None` where there are none.
pub(crate) fn replace_lone_surrogates(json: &[u8]) -> Option<Vec<u8>> {
    let mut replaced = None;
    let mut at = 0;
    while let Some(found) = json[at..].iter().position(|byte| *byte == b'\\') {
        at += found;
        let unit = escaped_unit(&json[at..]);
        at += match unit {
            // The backslash, and the character that it escapes.
            None => 2,
            Some(0xD800..0xDC00) if is_low(escaped_unit(&json[at + 6..])) => 12,
            Some(0xD800..0xE000) => {
                let copy = replaced.get_or_insert_with(|| json.to_vec());
                copy[at..at + 6].copy_from_slice(b"\\ufffd");
                6
            }
            Some(_) => 6,
        };
        at = at.min(json.len());
    }
    replaced
}

fn is_low(unit: Option<u16>) -> bool {
    matches!(unit, Some(0xDC00..0xE000))
}

/// The number of an escape `\uXXXX` at the beginning.
fn escaped_unit(json: &[u8]) -> Option<u16> {
    let digits = json.strip_prefix(b"\\u")?.get(..4)?;
    if !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_surrogates_without_a_partner_are_replaced() {
        for (json, want) in [
            (r#""x\ud83d y""#, Some(r#""x\ufffd y""#)),
            (r#"{"\uD83D": 1}"#, Some(r#"{"\ufffd": 1}"#)),
            (r#""\ude00\ud83d""#, Some(r#""\ufffd\ufffd""#)),
            (r#""\ud83d\ud83d\ude00""#, Some(r#""\ufffd\ud83d\ude00""#)),
            (r#""\ud83d\n\udc00""#, Some(r#""\ufffd\n\ufffd""#)),
            (r#""\ud83d\u0041""#, Some(r#""\ufffd\u0041""#)),
            (r#""\\\ud83d""#, Some(r#""\\\ufffd""#)),
            (r#""\ud83d"#, Some(r#""\ufffd"#)),
            // A pair, an escaped backslash, and what is no escape.
            (r#""\ud83d\ude00 \u00e9""#, None),
            (r#""\\ud83d \\\\udc00""#, None),
            (r#""\ud8" "\u+123" "\u"#, None),
            (r#""\"#, None),
            ("", None),
        ] {
            let replaced = replace_lone_surrogates(json.as_bytes());
            assert_eq!(replaced.as_deref(), want.map(str::as_bytes), "{json}");
        }
    }
}
