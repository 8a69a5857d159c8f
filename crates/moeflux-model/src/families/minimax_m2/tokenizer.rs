//! What files leave to the code of its tokenizers.

use moeflux_core::{Patterns, Splitter, Splitting, TokenizerDialect};

pub(super) const TOKENIZER: TokenizerDialect = TokenizerDialect {
    splitters: &[("minimax-m2", Splitter::new(Splitting::of(Patterns::O200k)))],
    merges: &[("minimax_m2", None)],
    ..TokenizerDialect::NONE
};
