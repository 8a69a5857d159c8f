//! GLM-4.5 and GLM-4.6: grouped-query attention that rotates half of each
//! head, a few dense layers first, then DeepSeek-V3's experts. As in
//! transformers' `modeling_glm4_moe`.

use moeflux_core::checkpoint::Config;

use super::Family;
use super::deepseek_v3::{MlpBlocks, MlpShape, MlpTerms};
use crate::layers::attention::{AttentionBlocks, AttentionShape, QkNorm};
use crate::layers::builder::{Builder, Outline};
use crate::layers::mtp::MtpNames;
use crate::layers::norm::NormWeights;
use crate::layers::sections::read_rope;
use crate::load::LoadError;
use crate::model::{Build, Model};

pub(crate) const FAMILY: Family = Family { name: "glm4_moe", model_types: &["glm4_moe"], build };

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
    decoder(config, attention_shape(config)?, MlpTerms::DEEPSEEK, Some(mtp), build)
}

/// Layers of grouped-query attention and of DeepSeek-V3's experts, under the names of a family.
pub(super) fn decoder(
    config: &Config,
    attention: AttentionShape,
    terms: MlpTerms,
    mtp: Option<MtpNames>,
    build: &mut Build<'_>,
) -> Result<Box<dyn Model>, LoadError> {
    let outline = Outline::read(config)?;
    let mlps = MlpShape::read(config, outline.n_layers, terms)?;
    decoder_of(config, outline, attention, mlps, mtp, build)
}

/// Layers of grouped-query attention and of the MLPs that were read.
pub(super) fn decoder_of(
    config: &Config,
    outline: Outline,
    attention: AttentionShape,
    mlps: MlpShape,
    mtp: Option<MtpNames>,
    build: &mut Build<'_>,
) -> Result<Box<dyn Model>, LoadError> {
    let block = attention.names.block;
    let rope = read_rope(config, attention.head_dim, attention.sections)?;
    let rope = build.backend().load_rope(rope);
    let mut builder = Builder::new(outline, NormWeights::Plain, build);
    let attention = AttentionBlocks::new(attention, rope, &mut builder);
    let mlps = MlpBlocks::new(mlps, &mut builder);
    builder.finish_with(mtp, |builder, idx, name| {
        let mixer = Box::new(attention.load(&format!("{name}.{block}"), builder)?);
        let mlp = mlps.load(idx, &format!("{name}.mlp"), builder)?;
        builder.layer(name, mixer, mlp)
    })
}
