//! What files leave to the code of its tokenizers.

use moeflux_core::{OwnTemplate, TokenizerDialect};

pub(super) const TOKENIZER: TokenizerDialect = TokenizerDialect {
    template: Some(OwnTemplate {
        // Files say what the architecture was called when they were converted.
        models: &["deepseek_v32", "deepseek32", "deepseek2"],
        tokens: &["｜DSML｜", "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>"],
        source: include_str!("template.jinja"),
    }),
    ..TokenizerDialect::NONE
};
