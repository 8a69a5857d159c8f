//! Solar Open: GLM-4.5's layers with rotation of whole heads, experts in every layer. As in
//! transformers' `modeling_solar_open`.

mod shapes;

use moeflux_core::checkpoint::Config;

use super::Family;
use crate::decoders::grouped;
use crate::layers::attention::AttentionShape;
use crate::layers::mlps::MlpTerms;
use crate::load::LoadError;
use crate::model::{Build, Model};

pub(crate) const FAMILY: Family = Family {
    shapes: shapes::SHAPES,
    ..Family::new("solar_open", &["solar_open"], include_str!("keys.json"), build)
};

fn build(config: &Config, build: &mut Build<'_>) -> Result<Box<dyn Model>, LoadError> {
    if config.rope_f32("partial_rotary_factor")?.is_some_and(|factor| factor != 1.0) {
        return Err(config.refuse("partial_rotary_factor", "be 1").into());
    }
    let attention = AttentionShape {
        has_qkv_bias: config.bool("attention_bias")?,
        ..AttentionShape::read(config)?
    };
    // The published checkpoint has no biases of the choice.
    let terms = MlpTerms { may_lack_bias: true, ..MlpTerms::USUAL };
    grouped::by_sigmoid(config, attention, terms, None, build)
}

#[cfg(test)]
mod tests;
