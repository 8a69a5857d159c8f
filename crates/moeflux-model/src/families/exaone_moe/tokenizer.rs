//! What files leave to the code of its tokenizers.

use moeflux_core::{Patterns, Splitter, Splitting, TokenizerDialect};

/// Words with the spaces between them are one piece.
const EXAONE_MOE: Patterns = Patterns::Own(&[concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
)]);

pub(super) const TOKENIZER: TokenizerDialect = TokenizerDialect {
    splitters: &[("exaone-moe", Splitter::new(Splitting::of(EXAONE_MOE)))],
    ..TokenizerDialect::NONE
};
