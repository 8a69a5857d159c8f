//! DeepSeek-V3.2: DeepSeek-V3 whose attention sees only the positions that an indexer chooses. As in
//! transformers' `modeling_deepseek_v32`.

mod gguf;
mod shapes;
mod tokenizer;

use moeflux_core::checkpoint::Config;

use super::Family;
use crate::decoders::indexed::{Differences, decoder};
use crate::load::LoadError;
use crate::model::{Build, Model};

pub(crate) const FAMILY: Family = Family {
    gguf: Some(&gguf::ARCHITECTURE),
    shapes: shapes::SHAPES,
    tokenizer: tokenizer::TOKENIZER,
    ..Family::new("deepseek_v32", &["deepseek_v32"], include_str!("keys.json"), build)
};

const DIFFERENCES: Differences =
    Differences { name: "deepseek_v32", interleaves_index: false, shares_choices: false };

fn build(config: &Config, build: &mut Build<'_>) -> Result<Box<dyn Model>, LoadError> {
    decoder(config, build, &DIFFERENCES)
}

#[cfg(test)]
mod tests;
