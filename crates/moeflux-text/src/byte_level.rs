//! GPT-2's spelling of bytes: a vocabulary of text has one printable character for each byte.

use std::collections::HashMap;

/// The character of each byte. Printable Latin-1 characters are themselves; the other bytes are
/// numbered from U+0100.
pub(super) fn char_of_byte() -> [char; 256] {
    let is_printable = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut next = 0x100;
    std::array::from_fn(|idx| {
        let b = idx as u8;
        if is_printable(b) {
            return char::from(b);
        }
        next += 1;
        char::from_u32(next - 1).unwrap_or_default()
    })
}

/// The byte of each of these characters.
pub(super) fn byte_of_char() -> HashMap<char, u8> {
    (0..=255).zip(char_of_byte()).map(|(b, c)| (c, b)).collect()
}
