//! Decoders with grouped-query attention in all layers.

use moeflux_backend::{RopeSpec, Scoring};
use moeflux_core::checkpoint::Config;

use crate::layers::attention::{AttentionBlocks, AttentionShape};
use crate::layers::builder::{Builder, Outline};
use crate::layers::dense::{Dense, MlpScratch};
use crate::layers::layer::{Body, Layer};
use crate::layers::mlps::{MlpBlocks, MlpShape, MlpTerms};
use crate::layers::moe::{MoeBlocks, MoeShape, sparse_layers};
use crate::layers::mtp::MtpNames;
use crate::layers::norm::NormWeights;
use crate::layers::sections::read_rope;
use crate::load::LoadError;
use crate::model::{Build, Model};

/// Layers of grouped-query attention and experts by softmax, some of them dense.
pub(crate) fn by_softmax(
    config: &Config,
    attention: AttentionShape,
    moe: MoeShape,
    build: &mut Build<'_>,
) -> Result<Box<dyn Model>, LoadError> {
    let outline = Outline::read(config)?;
    let is_sparse = sparse_layers(config, outline.n_layers)?;
    let has_dense = is_sparse.contains(&false);
    let dense = has_dense.then(|| config.usize("intermediate_size")).transpose()?;
    let renormalise = config.bool("norm_topk_prob")?;
    let rope = read_rope(config, attention.head_dim, attention.sections)?;
    let rope = build.backend().load_rope(RopeSpec { pairs: attention.pairs, ..rope });
    let mut builder = Builder::new(outline, NormWeights::Plain, build);
    let attention = AttentionBlocks::new(attention, rope, &mut builder);
    let moe = MoeBlocks::new(moe, &mut builder);
    let dense = dense.map(|mlp| MlpScratch::alloc(mlp, &mut builder));
    builder.finish(|builder, idx, name| {
        let mixer = Box::new(attention.load(&format!("{name}.self_attn"), builder)?);
        let mlp = format!("{name}.mlp");
        let mlp = match dense {
            Some(dense) if !is_sparse[idx.idx()] => Body::Dense(Dense::load(dense, &mlp, builder)?),
            _ => {
                let scoring = Scoring::softmax(renormalise);
                Body::Moe(moe.load(idx, &mlp, scoring, builder)?)
            }
        };
        Layer::load(builder, name, mixer, mlp)
    })
}

/// Layers of grouped-query attention and of experts that sigmoid scores choose, under the
/// names of a family.
pub(crate) fn by_sigmoid(
    config: &Config,
    attention: AttentionShape,
    terms: MlpTerms,
    mtp: Option<MtpNames>,
    build: &mut Build<'_>,
) -> Result<Box<dyn Model>, LoadError> {
    let outline = Outline::read(config)?;
    let mlps = MlpShape::read(config, outline.n_layers, terms)?;
    of_mlps(config, outline, attention, mlps, mtp, build)
}

/// Layers of grouped-query attention and of the MLPs that were read.
pub(crate) fn of_mlps(
    config: &Config,
    outline: Outline,
    attention: AttentionShape,
    mlps: MlpShape,
    mtp: Option<MtpNames>,
    build: &mut Build<'_>,
) -> Result<Box<dyn Model>, LoadError> {
    let block = attention.names.block;
    let rope = read_rope(config, attention.head_dim, attention.sections)?;
    let rope = build.backend().load_rope(RopeSpec { pairs: attention.pairs, ..rope });
    let mut builder = Builder::new(outline, NormWeights::Plain, build);
    let attention = AttentionBlocks::new(attention, rope, &mut builder);
    let mlps = MlpBlocks::new(mlps, &mut builder);
    builder.finish_with(mtp, |builder, idx, name| {
        let mixer = Box::new(attention.load(&format!("{name}.{block}"), builder)?);
        let mlp = mlps.load(idx, &format!("{name}.mlp"), builder)?;
        Layer::load(builder, name, mixer, mlp)
    })
}
