//! What files leave to the code of its tokenizers.

use moeflux_core::TokenizerDialect;

pub(super) const TOKENIZER: TokenizerDialect =
    TokenizerDialect { merged_pieces: &["gemma4"], ..TokenizerDialect::NONE };
