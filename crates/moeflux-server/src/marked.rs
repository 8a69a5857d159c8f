//! Prompts as the log shows them.

use moeflux_engine::TokenId;
use moeflux_text::Tokenizer;

/// A prompt for the log: control tokens stand in brackets that tell them from text which looks the
/// same, and control characters are escaped.
pub(crate) fn marked(tokenizer: &Tokenizer, tokens: &[TokenId]) -> String {
    let mut text = format!("prompt of {} tokens:\n", tokens.len());
    for part in tokens.chunk_by(|a, b| !tokenizer.is_control(*a) && !tokenizer.is_control(*b)) {
        let is_control = part.first().is_some_and(|id| tokenizer.is_control(*id));
        let open = if is_control { "⟦" } else { "" };
        let close = if is_control { "⟧" } else { "" };
        text.push_str(open);
        for c in tokenizer.decode(part).chars() {
            match c {
                '\n' | '\t' => text.push(c),
                c if c.is_control() => text.extend(c.escape_default()),
                c => text.push(c),
            }
        }
        text.push_str(close);
    }
    text
}
