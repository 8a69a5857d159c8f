//! What files leave to the code of its tokenizers.

use moeflux_core::{OwnTemplate, TokenizerDialect};

pub(super) const TOKENIZER: TokenizerDialect = TokenizerDialect {
    template: Some(OwnTemplate {
        models: &["deepseek_v4", "deepseek4"],
        tokens: &[
            "｜DSML｜",
            "<｜User｜>",
            "<｜Assistant｜>",
            "<think>",
            "</think>",
            // Earlier models, which have the others too, are spoken to in another way.
            "<｜latest_reminder｜>",
        ],
        source: include_str!("template.jinja"),
    }),
    ..TokenizerDialect::NONE
};
