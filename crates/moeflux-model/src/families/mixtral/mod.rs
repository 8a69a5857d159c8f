//! Mixtral: grouped-query attention, softmax routing. As in transformers'
//! `modeling_mixtral`.

mod gguf;
mod shapes;

use moeflux_backend::{RopePairs, RopeSpec, Scoring};
use moeflux_core::Spelling;
use moeflux_core::checkpoint::Config;

use super::Family;
use crate::layers::attention::{AttentionBlocks, AttentionShape};
use crate::layers::builder::{Builder, Outline};
use crate::layers::expert_shape::{ExpertShape, GatedExpert};
use crate::layers::layer::{Body, Layer};
use crate::layers::moe::{MoeBlocks, MoeShape};
use crate::layers::norm::NormWeights;
use crate::layers::rope;
use crate::load::LoadError;
use crate::model::{Build, Model};

pub(crate) const FAMILY: Family = Family {
    gguf: Some(&gguf::ARCHITECTURE),
    shapes: shapes::SHAPES,
    spellings: &[Spelling::within(".mlp.", ".block_sparse_moe.")],
    ..Family::new("mixtral", &["mixtral"], include_str!("keys.json"), build)
};

fn attention_shape(config: &Config) -> Result<AttentionShape, LoadError> {
    let window = config.get("sliding_window").map(|_| config.usize("sliding_window"));
    Ok(AttentionShape { window: window.transpose()?, ..AttentionShape::read(config)? })
}

fn build(config: &Config, build: &mut Build<'_>) -> Result<Box<dyn Model>, LoadError> {
    let outline = Outline::read(config)?;
    let attention = attention_shape(config)?;
    let moe = MoeShape {
        expert: ExpertShape::Three(GatedExpert::NUMBERED),
        ..MoeShape::read(config, "num_local_experts", "intermediate_size")?
    };
    let pairs = if config.bool_or("rope_interleave", false)? {
        RopePairs::Adjacent
    } else {
        RopePairs::Halves
    };
    let rope = RopeSpec { pairs, ..rope::read(config, attention.head_dim)? };
    let rope = build.backend().load_rope(rope);
    let mut builder = Builder::new(outline, NormWeights::Plain, build);
    let attention = AttentionBlocks::new(attention, rope, &mut builder);
    let moe = MoeBlocks::new(moe, &mut builder);
    builder.finish(|builder, idx, name| {
        let mixer = Box::new(attention.load(&format!("{name}.self_attn"), builder)?);
        let scoring = Scoring::softmax(true);
        let moe = moe.load(idx, &format!("{name}.block_sparse_moe"), scoring, builder)?;
        Layer::load(builder, name, mixer, Body::Moe(moe))
    })
}

#[cfg(test)]
mod tests;
