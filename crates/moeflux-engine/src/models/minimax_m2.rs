//! MiniMax-M2: grouped-query attention whose queries and keys are normalised
//! over all heads together, sigmoid routing. As in transformers'
//! `modeling_minimax_m2`.

use moeflux_backend::RopeSpec;
use moeflux_core::checkpoint::Config;

use super::{Build, Family, Model};
use crate::layers::attention::{AttentionBlocks, AttentionShape, QkNorm};
use crate::layers::decoder::{Builder, Mlp, Outline};
use crate::layers::moe::{MoeBlocks, MoeShape, NUMBERED_PARTS};
use crate::layers::norm::NormWeights;
use crate::layers::rope;
use crate::layers::routing::SigmoidRouting;
use crate::load::LoadError;

pub(crate) const FAMILY: Family =
    Family { name: "minimax_m2", model_types: &["minimax_m2", "minimax"], build };

fn attention_shape(config: &Config) -> Result<AttentionShape, LoadError> {
    config.require_false("attention_bias")?;
    config.require_default("qk_norm_type", "per_layer")?;
    let refuse = |key, rule| Err(config.refuse(key, rule).into());
    if !config.bool_or("use_qk_norm", true)? {
        return refuse("use_qk_norm", "be true");
    }
    // MiniMax-M1 has layers of linear attention, numbered 0.
    if config.usize_list("attn_type_list")?.is_some_and(|it| it.iter().any(|it| *it != 1)) {
        return refuse("attn_type_list", "hold only 1");
    }
    if config.get("sliding_window").is_some() {
        return refuse("sliding_window", "be absent");
    }
    if config.usize_or("shared_intermediate_size", 0)? > 0 {
        return refuse("shared_intermediate_size", "be 0");
    }
    Ok(AttentionShape { norms: QkNorm::Whole, ..AttentionShape::read(config)? })
}

/// Published configs give the rotated columns, later ones their share.
fn rotation(config: &Config, head_dim: usize) -> Result<RopeSpec, LoadError> {
    if config.get("rotary_dim").is_none() {
        return rope::read(config, head_dim, 1.0);
    }
    let rotary_dim = config.usize_in("rotary_dim", 2..=head_dim)?;
    if !rotary_dim.is_multiple_of(2) {
        return Err(config.refuse("rotary_dim", "be even").into());
    }
    rope::with_dim(config, rotary_dim)
}

fn build(config: &Config, build: &mut Build<'_>) -> Result<Box<dyn Model>, LoadError> {
    let outline = Outline::read(config)?;
    let attention = attention_shape(config)?;
    let mut moe =
        MoeShape { parts: NUMBERED_PARTS, ..MoeShape::read(config, "intermediate_size")? };
    let routing = SigmoidRouting::read(config, &mut moe)?;
    let has_bias = config.bool_or("use_routing_bias", true)?;
    let rope = rotation(config, attention.head_dim)?;
    let rope = build.backend().load_rope(rope);
    let mut builder = Builder::new(outline, NormWeights::Plain, build);
    let n_experts = moe.n_experts;
    let attention = AttentionBlocks::new(attention, rope, &mut builder);
    let moe = MoeBlocks::new(moe, &mut builder);
    builder.finish(|builder, idx, name| {
        let mixer = Box::new(attention.load(&format!("{name}.self_attn"), builder)?);
        let block = format!("{name}.block_sparse_moe");
        let bias = format!("{block}.e_score_correction_bias");
        let bias = has_bias.then(|| builder.vector(&bias, n_experts)).transpose()?;
        let moe = moe.load(idx, &block, routing.scoring(bias), builder)?;
        builder.layer(name, mixer, Mlp::Moe(moe))
    })
}
