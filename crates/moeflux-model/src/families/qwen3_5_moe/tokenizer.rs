//! What files leave to the code of its tokenizers.

use moeflux_core::{Patterns, Splitter, Splitting, TokenizerDialect};

const QWEN3_5: Splitting = Splitting::composed(Patterns::Qwen3_5);

pub(super) const TOKENIZER: TokenizerDialect = TokenizerDialect {
    splitters: &[("qwen35", Splitter::new(QWEN3_5))],
    merges: &[
        ("qwen3_5", Some(QWEN3_5)),
        ("qwen3_5_text", Some(QWEN3_5)),
        ("qwen3_5_moe", Some(QWEN3_5)),
        ("qwen3_5_moe_text", Some(QWEN3_5)),
    ],
    ..TokenizerDialect::NONE
};
