//! The text of GLM-4.5V and GLM-4.6V: GLM-4.5's layers. Positions have three parts; those of text are
//! equal, with which the rotation is a plain one. As in transformers' `modeling_glm4v_moe`.

use moeflux_core::checkpoint::Config;

use super::Family;
use super::deepseek_v3::MlpTerms;
use super::glm4_moe::decoder;
use crate::layers::attention::AttentionShape;
use crate::layers::mtp::MtpNames;
use crate::layers::sections::Sections;
use crate::load::LoadError;
use crate::model::{Build, Model};

pub(crate) const FAMILY: Family =
    Family { name: "glm4v_moe", model_types: &["glm4v_moe", "glm4v_moe_text"], build };

fn build(config: &Config, build: &mut Build<'_>) -> Result<Box<dyn Model>, LoadError> {
    let attention = AttentionShape {
        has_qkv_bias: config.bool("attention_bias")?,
        sections: Some(Sections::Blocks),
        ..AttentionShape::read(config)?
    };
    let mtp = MtpNames::past_the_last(config.usize("num_hidden_layers")?);
    decoder(config, attention, MlpTerms::DEEPSEEK, Some(mtp), build)
}
