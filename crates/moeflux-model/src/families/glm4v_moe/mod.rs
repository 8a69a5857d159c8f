//! The text of GLM-4.5V and GLM-4.6V: GLM-4.5's layers. Positions have three parts; those of text are
//! equal, with which the rotation is a plain one. As in transformers' `modeling_glm4v_moe`.

mod gguf;
mod shapes;

use moeflux_core::checkpoint::Config;

use super::Family;
use crate::decoders::grouped;
use crate::layers::attention::AttentionShape;
use crate::layers::mlps::MlpTerms;
use crate::layers::mtp::MtpNames;
use crate::layers::sections::Sections;
use crate::load::LoadError;
use crate::model::{Build, Model};
use crate::towers;

pub(crate) const FAMILY: Family = Family {
    gguf: Some(&gguf::ARCHITECTURE),
    shapes: shapes::SHAPES,
    tower: Some(towers::gated::TOWER),
    ..Family::new("glm4v_moe", &["glm4v_moe", "glm4v_moe_text"], include_str!("keys.json"), build)
};

fn build(config: &Config, build: &mut Build<'_>) -> Result<Box<dyn Model>, LoadError> {
    let attention = AttentionShape {
        has_qkv_bias: config.bool("attention_bias")?,
        sections: Some(Sections::Blocks),
        ..AttentionShape::read(config)?
    };
    let mtp = MtpNames::past_the_last(config.usize("num_hidden_layers")?);
    grouped::by_sigmoid(config, attention, MlpTerms::USUAL, Some(mtp), build)
}

#[cfg(test)]
mod tests;
