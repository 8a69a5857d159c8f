//! GLM-4.5 and GLM-4.6: grouped-query attention that rotates half of each
//! head, a few dense layers first, then DeepSeek-V3's experts. As in
//! transformers' `modeling_glm4_moe`.

pub(super) mod gguf;
pub(super) mod shapes;
mod tokenizer;

use moeflux_core::checkpoint::Config;

use super::Family;
use crate::decoders::grouped;
use crate::layers::attention::{AttentionShape, QkNorm};
use crate::layers::mlps::MlpTerms;
use crate::layers::mtp::MtpNames;
use crate::load::LoadError;
use crate::model::{Build, Model};

pub(crate) const FAMILY: Family = Family {
    gguf: Some(&gguf::ARCHITECTURE),
    shapes: shapes::SHAPES,
    tokenizer: tokenizer::TOKENIZER,
    ..Family::new("glm4_moe", &["glm4_moe"], include_str!("keys.json"), build)
};

fn attention_shape(config: &Config) -> Result<AttentionShape, LoadError> {
    let is_normalised = config.bool("use_qk_norm")?;
    Ok(AttentionShape {
        norms: if is_normalised { QkNorm::PerHead } else { QkNorm::None },
        has_qkv_bias: config.bool("attention_bias")?,
        ..AttentionShape::read(config)?
    })
}

fn build(config: &Config, build: &mut Build<'_>) -> Result<Box<dyn Model>, LoadError> {
    let mtp = MtpNames::past_the_last(config.usize("num_hidden_layers")?);
    grouped::by_sigmoid(config, attention_shape(config)?, MlpTerms::USUAL, Some(mtp), build)
}

#[cfg(test)]
mod tests;
