//! What files leave to the code of its tokenizers.

use moeflux_core::{Patterns, Splitter, Splitting, TokenizerDialect};

pub(super) const TOKENIZER: TokenizerDialect = TokenizerDialect {
    splitters: &[("deepseek-v3", Splitter::new(Splitting::of(Patterns::DeepSeek)))],
    ..TokenizerDialect::NONE
};
