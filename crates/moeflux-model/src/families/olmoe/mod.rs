//! OLMoE: grouped-query attention whose queries and keys are normalised over all heads together,
//! softmax routing, no dense layer. As in transformers' `modeling_olmoe`.

mod gguf;
mod shapes;
mod tokenizer;

use moeflux_core::checkpoint::Config;

use super::Family;
use crate::decoders::grouped;
use crate::layers::attention::{AttentionShape, QkNorm};
use crate::layers::moe::MoeShape;
use crate::load::LoadError;
use crate::model::{Build, Model};

pub(crate) const FAMILY: Family = Family {
    gguf: Some(&gguf::ARCHITECTURE),
    shapes: shapes::SHAPES,
    tokenizer: tokenizer::TOKENIZER,
    ..Family::new("olmoe", &["olmoe"], include_str!("keys.json"), build)
};

fn build(config: &Config, build: &mut Build<'_>) -> Result<Box<dyn Model>, LoadError> {
    let has_bias = config.bool("attention_bias")?;
    let attention = AttentionShape {
        norms: QkNorm::Whole,
        has_qkv_bias: has_bias,
        has_output_bias: has_bias,
        ..AttentionShape::read(config)?
    };
    let moe = MoeShape::read(config, "num_experts", "intermediate_size")?;
    grouped::by_softmax(config, attention, moe, build)
}

#[cfg(test)]
mod tests;
