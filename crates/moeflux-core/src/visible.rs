//! Text from outside on its way to a terminal.

use std::borrow::Cow;
use std::fmt::Write;

/// Text in which nothing commands a terminal: control characters become visible, line ends and
/// tabs stay. A carriage return goes, as it would let a line write over itself.
///
/// Escape sequences begin with one of these characters, so that the rest of a sequence is plain
/// text, wherever pieces of a stream end. Characters that turn the direction of text are shown too:
/// they make a line read differently from what it holds.
pub fn visible(text: &str) -> Cow<'_, str> {
    if !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '\r' => {}
            c if !is_hidden(c) => shown.push(c),
            // The pictures of Unicode for U+0000 to U+001F and for U+007F.
            '\0'..='\x1f' => shown.extend(char::from_u32(0x2400 + u32::from(c))),
            '\x7f' => shown.push('\u{2421}'),
            // Writing to a string does not fail.
            c => {
                let _ = write!(shown, "<U+{:04X}>", u32::from(c));
            }
        }
    }
    Cow::Owned(shown)
}

/// Whether a terminal would obey a character in place of showing it.
fn is_hidden(c: char) -> bool {
    match c {
        '\n' | '\t' => false,
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        c => c.is_control(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_stays_as_it_is() {
        let text = "Größe\t日本語 🦀 مرحبا\u{200f}\n\u{a0}\u{2028}";
        assert!(matches!(visible(text), Cow::Borrowed(same) if same == text));
    }

    #[test]
    fn what_commands_a_terminal_is_shown() {
        for (text, want) in [
            ("\x1b[31mred\x1b[0m", "␛[31mred␛[0m"),
            ("\x1b]52;c;AAAA\x07", "␛]52;c;AAAA␇"),
            ("\x1b]8;;http://a\x1b\\b", "␛]8;;http://a␛\\b"),
            ("\x1bPq\x1b\\", "␛Pq␛\\"),
            ("a\r\nb\rc", "a\nbc"),
            ("\x08\x7f\0", "␈␡␀"),
            ("\u{9b}2J\u{85}", "<U+009B>2J<U+0085>"),
            ("\u{202e}txt\u{2066}", "<U+202E>txt<U+2066>"),
        ] {
            assert_eq!(visible(text), want, "{text:?}");
        }
    }

    #[test]
    fn pieces_show_what_the_whole_shows() {
        let text = "a\x1b[2J\x1b]0;t\x07\u{9b}1m\r\n\u{202d}é";
        let pieces: String =
            text.chars().map(|c| visible(c.encode_utf8(&mut [0; 4])).into_owned()).collect();
        assert_eq!(pieces, visible(text));
    }
}
