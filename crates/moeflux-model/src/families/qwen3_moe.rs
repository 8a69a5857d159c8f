//! Qwen3 mixture-of-experts models: grouped-query attention with normalised
//! queries and keys, softmax routing. As in transformers' `modeling_qwen3_moe`.

use moeflux_backend::Scoring;
use moeflux_core::checkpoint::Config;

use super::Family;
use crate::layers::attention::{AttentionBlocks, AttentionShape, QkNorm};
use crate::layers::builder::{Builder, Outline};
use crate::layers::dense::{Dense, GatedScratch};
use crate::layers::layer::Mlp;
use crate::layers::moe::{MoeBlocks, MoeShape, sparse_layers};
use crate::layers::norm::NormWeights;
use crate::layers::sections::read_rope;
use crate::load::LoadError;
use crate::model::{Build, Model};

pub(crate) const FAMILY: Family = Family { name: "qwen3_moe", model_types: &["qwen3_moe"], build };

fn attention_shape(config: &Config) -> Result<AttentionShape, LoadError> {
    let has_bias = config.bool("attention_bias")?;
    let window = config.get("sliding_window").map(|_| config.usize("sliding_window"));
    let is_windowed = config.bool("use_sliding_window")?;
    Ok(AttentionShape {
        norms: QkNorm::PerHead,
        has_qkv_bias: has_bias,
        has_output_bias: has_bias,
        window: window.filter(|_| is_windowed).transpose()?,
        ..AttentionShape::read(config)?
    })
}

fn build(config: &Config, build: &mut Build<'_>) -> Result<Box<dyn Model>, LoadError> {
    let moe = MoeShape::read(config, "num_experts", "moe_intermediate_size")?;
    decoder(config, attention_shape(config)?, moe, build)
}

/// Layers of grouped-query attention and experts by softmax, some of them dense.
pub(super) fn decoder(
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
    let rope = build.backend().load_rope(rope);
    let mut builder = Builder::new(outline, NormWeights::Plain, build);
    let attention = AttentionBlocks::new(attention, rope, &mut builder);
    let moe = MoeBlocks::new(moe, &mut builder);
    let dense = dense.map(|mlp| GatedScratch::alloc(mlp, &mut builder));
    builder.finish(|builder, idx, name| {
        let mixer = Box::new(attention.load(&format!("{name}.self_attn"), builder)?);
        let mlp = format!("{name}.mlp");
        let mlp = match dense {
            Some(dense) if !is_sparse[idx.idx()] => Mlp::Dense(Dense::load(dense, &mlp, builder)?),
            _ => {
                let scoring = Scoring::softmax(renormalise);
                Mlp::Moe(moe.load(idx, &mlp, scoring, builder)?)
            }
        };
        builder.layer(name, mixer, mlp)
    })
}
