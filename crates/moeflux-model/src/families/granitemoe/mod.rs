//! Granite 3 with experts: grouped-query attention, softmax routing, and factors of the embedding,
//! of what joins the residual, of scores and of logits. As in transformers' `modeling_granitemoe`.

mod gguf;
mod shapes;

use moeflux_backend::{RopePairs, RopeSpec, Scoring};
use moeflux_core::Spelling;
use moeflux_core::checkpoint::Config;

use super::Family;
use crate::layers::attention::{AttentionBlocks, AttentionShape};
use crate::layers::builder::{Builder, Outline};
use crate::layers::layer::{After, Body, Layer};
use crate::layers::moe::{MoeBlocks, MoeShape};
use crate::layers::norm::NormWeights;
use crate::layers::rope;
use crate::load::LoadError;
use crate::model::{Build, Model};

pub(crate) const FAMILY: Family = Family {
    gguf: Some(&gguf::ARCHITECTURE),
    shapes: shapes::SHAPES,
    joined_experts: &[["input_linear", "output_linear"]],
    spellings: &[Spelling::end(".router.weight", ".router.layer.weight")],
    ..Family::new("granitemoe", &["granitemoe"], include_str!("keys.json"), build)
};

/// A number that others are divided by.
fn divisor(config: &Config, key: &str) -> Result<f32, LoadError> {
    const LEAST: f32 = 1e-6;
    let divisor = config.f32(key)?;
    if divisor < LEAST {
        return Err(config.refuse(key, &format!("be at least {LEAST:e}")).into());
    }
    Ok(divisor)
}

fn outline(config: &Config) -> Result<Outline, LoadError> {
    Ok(Outline {
        embed_scale: Some(config.f32("embedding_multiplier")?),
        logit_scale: Some(1.0 / divisor(config, "logits_scaling")?),
        ..Outline::read(config)?
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
    // Multiplies what joins the residual.
    let joining = config.f32("residual_multiplier")?;
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
        let mixer = Body::Mixer { mixer, after: After::Factor(joining) };
        let scoring =
            Scoring::Softmax { per_expert: None, groups: None, renormalise: true, scale: joining };
        let moe = moe.load(idx, &format!("{name}.block_sparse_moe"), scoring, builder)?;
        Layer::of(builder, name, mixer, Body::Moe(moe))
    })
}

#[cfg(test)]
mod tests;
