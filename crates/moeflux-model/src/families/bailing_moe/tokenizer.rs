//! What files leave to the code of its tokenizers.

use moeflux_core::{Patterns, Splitter, Splitting, TokenizerDialect};

/// Ling and Ring.
const BAILING: Patterns = Patterns::Own(&[concat!(
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
)]);

pub(super) const TOKENIZER: TokenizerDialect = TokenizerDialect {
    splitters: &[
        ("bailingmoe", Splitter::new(Splitting::of(BAILING))),
        ("bailingmoe2", Splitter::new(Splitting::of(BAILING))),
    ],
    ..TokenizerDialect::NONE
};
