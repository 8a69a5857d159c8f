//! Decoders with multi-head latent attention.

use moeflux_backend::RopeSpec;
use moeflux_core::checkpoint::Config;

use crate::layers::builder::{Builder, Outline};
use crate::layers::layer::Layer;
use crate::layers::mla::{MlaBlocks, MlaShape};
use crate::layers::mlps::{MlpBlocks, MlpShape, MlpTerms};
use crate::layers::mtp::MtpNames;
use crate::layers::norm::NormWeights;
use crate::layers::rope;
use crate::load::LoadError;
use crate::model::{Build, Model};

/// Layers of latent attention, the first of them dense, the others with experts that sigmoid scores
/// choose.
pub(crate) fn decoder(config: &Config, build: &mut Build<'_>) -> Result<Box<dyn Model>, LoadError> {
    let outline = Outline::read(config)?;
    let mlps = MlpShape::read(config, outline.n_layers, MlpTerms::USUAL)?;
    of_mlps(config, outline, mlps, build)
}

/// Layers of latent attention and of the MLPs that were read.
pub(crate) fn of_mlps(
    config: &Config,
    outline: Outline,
    mlps: MlpShape,
    build: &mut Build<'_>,
) -> Result<Box<dyn Model>, LoadError> {
    let attention = MlaShape::read(config)?;
    let rope = rope::with_dim(config, attention.rope_dim)?;
    let rope = build.backend().load_rope(RopeSpec { pairs: attention.pairs, ..rope });
    let mut builder = Builder::new(outline, NormWeights::Plain, build);
    let attention = MlaBlocks::new(attention, Some(rope), &mut builder);
    let mlps = MlpBlocks::new(mlps, &mut builder);
    let mtp = MtpNames::past_the_last(outline.n_layers);
    builder.finish_with(Some(mtp), |builder, idx, name| {
        let mixer = Box::new(attention.load(&format!("{name}.self_attn"), builder)?);
        let mlp = mlps.load(idx, &format!("{name}.mlp"), builder)?;
        Layer::load(builder, name, mixer, mlp)
    })
}
