//! Where links may lead, and addresses in running text.

/// Schemes of addresses that become links.
pub(super) const SCHEMES: [&str; 3] = ["http", "https", "mailto"];

/// Whether an address may become a link.
pub(super) fn is_allowed(address: &str) -> bool {
    let Some((scheme, rest)) = address.split_once(':') else { return false };
    !rest.is_empty() && SCHEMES.iter().any(|allowed| scheme.eq_ignore_ascii_case(allowed))
}

/// A part of running text.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part<'a> {
    Text(&'a str),
    Address(&'a str),
}

/// Splits running text at the web addresses in it.
pub(super) fn split(text: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let mut rest = text;
    let mut from = 0;
    while let Some(start) = find_start(rest, from) {
        let tail = &rest[start..];
        let address = &tail[..address_len(tail)];
        let scheme_len = address.find("://").map_or(0, |at| at + 3);
        if address.len() == scheme_len {
            from = start + scheme_len;
            continue;
        }
        if start > 0 {
            parts.push(Part::Text(&rest[..start]));
        }
        parts.push(Part::Address(address));
        rest = &rest[start + address.len()..];
        from = 0;
    }
    if !rest.is_empty() {
        parts.push(Part::Text(rest));
    }
    parts
}

/// Where `http://` or `https://` begins a word, at `from` or later.
fn find_start(text: &str, from: usize) -> Option<usize> {
    let mut from = from;
    loop {
        let start = from + text.get(from..)?.find("http")?;
        let tail = &text[start..];
        let is_address = tail.starts_with("http://") || tail.starts_with("https://");
        let begins_word = !text[..start].ends_with(|before: char| before.is_alphanumeric());
        if is_address && begins_word {
            return Some(start);
        }
        from = start + "http".len();
    }
}

/// Bytes of the address that `text` begins with, without the sentence's punctuation after it.
fn address_len(text: &str) -> usize {
    let is_end = |char: char| char.is_whitespace() || "<>\"`|".contains(char);
    let mut address = &text[..text.find(is_end).unwrap_or(text.len())];
    loop {
        let Some(last) = address.chars().next_back() else { return 0 };
        let is_unopened = match last {
            ')' => address.matches(')').count() > address.matches('(').count(),
            ']' => address.matches(']').count() > address.matches('[').count(),
            _ => false,
        };
        if !is_unopened && !".,;:!?'*_~…。，、".contains(last) {
            return address.len();
        }
        address = &address[..address.len() - last.len_utf8()];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_end_before_punctuation() {
        let address = |text| match split(text).as_slice() {
            [.., Part::Address(address), Part::Text(_)] | [.., Part::Address(address)] => {
                address.to_string()
            }
            _ => String::new(),
        };
        assert_eq!(address("see https://example.com/a_b."), "https://example.com/a_b");
        assert_eq!(address("(http://example.com/a)"), "http://example.com/a");
        assert_eq!(address("http://example.com/a_(b)"), "http://example.com/a_(b)");
        assert_eq!(address("http://example.com/?a=1&b=2, and"), "http://example.com/?a=1&b=2");
        for text in ["http", "https://", "http:// x", "xhttp://example.com", "https://."] {
            assert_eq!(address(text), "", "{text}");
        }
    }

    #[test]
    fn only_some_schemes_are_allowed() {
        for address in ["http://a", "HTTPS://a", "mailto:a@example.com"] {
            assert!(is_allowed(address), "{address}");
        }
        for address in ["javascript:alert(1)", "data:text/html,x", "/page", "#a", "http:", "a", ""]
        {
            assert!(!is_allowed(address), "{address}");
        }
    }
}
