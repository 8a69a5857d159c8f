//! GLM-5: DeepSeek-V3.2's layers, of which some attend to what an earlier one chose. As in
//! transformers' `modeling_glm_moe_dsa`.

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
    ..Family::new("glm_moe_dsa", &["glm_moe_dsa"], include_str!("keys.json"), build)
};

const DIFFERENCES: Differences =
    Differences { name: "glm_moe_dsa", interleaves_index: true, shares_choices: true };

fn build(config: &Config, build: &mut Build<'_>) -> Result<Box<dyn Model>, LoadError> {
    decoder(config, build, &DIFFERENCES)
}

#[cfg(test)]
mod tests;
