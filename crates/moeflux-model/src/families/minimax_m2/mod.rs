//! MiniMax-M2: grouped-query attention whose queries and keys are normalised
//! over all heads together, sigmoid routing. As in transformers'
//! `modeling_minimax_m2`.

mod gguf;
mod shapes;
mod tokenizer;

use moeflux_core::Spelling;
use moeflux_core::checkpoint::Config;

use super::Family;
use crate::layers::attention::{AttentionBlocks, AttentionShape, QkNorm};
use crate::layers::builder::{Builder, Outline};
use crate::layers::expert_shape::{ExpertShape, GatedExpert};
use crate::layers::layer::{Body, Layer};
use crate::layers::moe::{MoeBlocks, MoeShape};
use crate::layers::norm::NormWeights;
use crate::layers::rope;
use crate::layers::routing::SigmoidRouting;
use crate::load::LoadError;
use crate::model::{Build, Model};

pub(crate) const FAMILY: Family = Family {
    gguf: Some(&gguf::ARCHITECTURE),
    shapes: shapes::SHAPES,
    tokenizer: tokenizer::TOKENIZER,
    spellings: &[Spelling::within(".mlp.", ".block_sparse_moe.")],
    ..Family::new("minimax_m2", &["minimax_m2", "minimax"], include_str!("keys.json"), build)
};

fn attention_shape(config: &Config) -> Result<AttentionShape, LoadError> {
    // MiniMax-M1 has layers of linear attention, numbered 0.
    if config.usize_list("attn_type_list")?.is_some_and(|types| types.iter().any(|kind| *kind != 1))
    {
        return Err(config.refuse("attn_type_list", "hold only 1").into());
    }
    Ok(AttentionShape { norms: QkNorm::Whole, ..AttentionShape::read(config)? })
}

fn build(config: &Config, build: &mut Build<'_>) -> Result<Box<dyn Model>, LoadError> {
    let outline = Outline::read(config)?;
    let attention = attention_shape(config)?;
    let mut moe = MoeShape {
        expert: ExpertShape::Three(GatedExpert::NUMBERED),
        ..MoeShape::read(config, "num_local_experts", "intermediate_size")?
    };
    let routing = SigmoidRouting::read(config, "routed_scaling_factor", &mut moe)?;
    let rope = rope::read(config, attention.head_dim)?;
    let rope = build.backend().load_rope(rope);
    let mut builder = Builder::new(outline, NormWeights::Plain, build);
    let n_experts = moe.n_experts;
    let attention = AttentionBlocks::new(attention, rope, &mut builder);
    let moe = MoeBlocks::new(moe, &mut builder);
    builder.finish(|builder, idx, name| {
        let mixer = Box::new(attention.load(&format!("{name}.self_attn"), builder)?);
        let block = format!("{name}.block_sparse_moe");
        let bias = format!("{block}.e_score_correction_bias");
        let bias = builder.vector(&bias, n_experts)?;
        let moe = moe.load(idx, &block, routing.scoring(Some(bias)), builder)?;
        Layer::load(builder, name, mixer, Body::Moe(moe))
    })
}

#[cfg(test)]
mod tests;
