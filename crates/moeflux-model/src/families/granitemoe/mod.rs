//! Granite 3 with experts: grouped-query attention, softmax routing, and factors of the embedding,
//! of what joins the residual, of scores and of logits. As in transformers' `modeling_granitemoe`.
//!
//! The residual is kept divided by the factor `r` of what joins it, which then joins as it is. Norms
//! give the same for it with an epsilon of `eps / r²`.

mod gguf;
mod shapes;

use moeflux_backend::{RopePairs, RopeSpec, Scoring};
use moeflux_core::checkpoint::Config;

use super::Family;
use crate::layers::attention::{AttentionBlocks, AttentionShape};
use crate::layers::builder::{Builder, Outline};
use crate::layers::layer::{Body, Layer};
use crate::layers::moe::{MoeBlocks, MoeShape};
use crate::layers::norm::NormWeights;
use crate::layers::rope;
use crate::load::LoadError;
use crate::model::{Build, Model};

pub(crate) const FAMILY: Family = Family {
    gguf: Some(&gguf::ARCHITECTURE),
    shapes: shapes::SHAPES,
    joined_experts: &[["input_linear", "output_linear"]],
    ..Family::new("granitemoe", &["granitemoe"], include_str!("keys.json"), build)
};

/// A factor, which a division or a root follows.
fn factor(config: &Config, key: &str) -> Result<f32, LoadError> {
    const LEAST: f32 = 1e-6;
    let factor = config.f32(key)?;
    match factor >= LEAST {
        true => Ok(factor),
        false => Err(config.refuse(key, &format!("be at least {LEAST:e}")).into()),
    }
}

fn outline(config: &Config) -> Result<Outline, LoadError> {
    let joining = factor(config, "residual_multiplier")?;
    let outline = Outline::read(config)?;
    Ok(Outline {
        eps: outline.eps / (joining * joining),
        embed_scale: Some(config.f32("embedding_multiplier")? / joining),
        logit_scale: Some(1.0 / factor(config, "logits_scaling")?),
        ..outline
    })
}

fn attention_shape(config: &Config) -> Result<AttentionShape, LoadError> {
    let has_bias = config.bool("attention_bias")?;
    Ok(AttentionShape {
        has_qkv_bias: has_bias,
        has_output_bias: has_bias,
        scale: config.f32("attention_multiplier")?,
        ..AttentionShape::read(config)?
    })
}

fn build(config: &Config, build: &mut Build<'_>) -> Result<Box<dyn Model>, LoadError> {
    let outline = outline(config)?;
    let attention = attention_shape(config)?;
    let moe = MoeShape {
        router: "router.layer",
        ..MoeShape::read(config, "num_local_experts", "intermediate_size")?
    };
    let is_interleaved = config.bool_or("rope_interleave", false)?;
    let pairs = if is_interleaved { RopePairs::Adjacent } else { RopePairs::Halves };
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
