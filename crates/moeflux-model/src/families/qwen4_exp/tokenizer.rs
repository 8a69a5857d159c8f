//! What files leave to the code of its tokenizers.

use moeflux_core::{Patterns, Splitting, TokenizerDialect};

pub(super) const TOKENIZER: TokenizerDialect = TokenizerDialect {
    merges: &[("qwen4_exp", Some(Splitting::composed(Patterns::Qwen3_5)))],
    ..TokenizerDialect::NONE
};
