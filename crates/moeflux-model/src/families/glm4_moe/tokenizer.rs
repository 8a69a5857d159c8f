//! What files leave to the code of its tokenizers.

use moeflux_core::{Patterns, Splitter, Splitting, TokenizerDialect};

pub(super) const TOKENIZER: TokenizerDialect = TokenizerDialect {
    splitters: &[
        ("glm4", Splitter::ignoring_merges(Splitting::of(Patterns::Gpt4))),
        ("chatglm-bpe", Splitter::new(Splitting::of(Patterns::Gpt4))),
    ],
    ..TokenizerDialect::NONE
};
