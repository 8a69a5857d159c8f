//! DeepSeek-V2, V2-Lite and Coder-V2: multi-head latent attention, a dense layer, then experts that
//! probabilities choose. As in transformers' `modeling_deepseek_v2`.

mod gguf;
mod shapes;
mod tokenizer;

use moeflux_core::checkpoint::Config;

use super::Family;
use crate::decoders::latent;
use crate::layers::builder::Outline;
use crate::layers::mlps::{MlpShape, MlpTerms};
use crate::load::LoadError;
use crate::model::{Build, Model};

pub(crate) const FAMILY: Family = Family {
    gguf: Some(&gguf::ARCHITECTURE),
    shapes: shapes::SHAPES,
    tokenizer: tokenizer::TOKENIZER,
    ..Family::new("deepseek_v2", &["deepseek_v2"], include_str!("keys.json"), build)
};

fn build(config: &Config, build: &mut Build<'_>) -> Result<Box<dyn Model>, LoadError> {
    let outline = Outline::read(config)?;
    let mlps = MlpShape::by_grouped_softmax(config, outline.n_layers, MlpTerms::USUAL)?;
    latent::of_mlps(config, outline, mlps, build)
}

#[cfg(test)]
mod tests;
