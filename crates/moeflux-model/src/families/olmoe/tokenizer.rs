//! What files leave to the code of its tokenizers.

use moeflux_core::{Patterns, Splitter, Splitting, TokenizerDialect};

pub(super) const TOKENIZER: TokenizerDialect = TokenizerDialect {
    // GPT-2's pattern after NFC, as `GPTNeoXTokenizer` of transformers.
    splitters: &[("olmo", Splitter::new(Splitting::composed(Patterns::Gpt2)))],
    ..TokenizerDialect::NONE
};
