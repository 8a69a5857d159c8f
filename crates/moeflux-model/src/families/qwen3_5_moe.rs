//! Qwen3.5 and Qwen3.6 mixture-of-experts models: GatedDeltaNet layers with
//! gated full attention every few layers, softmax routing, a gated shared
//! expert. As in transformers' `modeling_qwen3_5_moe`.

use moeflux_backend::Scoring;
use moeflux_core::checkpoint::Config;

use super::Family;
use crate::layers::attention::{AttentionBlocks, AttentionShape, QkNorm};
use crate::layers::builder::{Builder, Outline};
use crate::layers::delta_net::{
    DeltaNetBlocks, DeltaNetLayer, DeltaNetShape, InProjections, full_attention_layers,
};
use crate::layers::layer::Mlp;
use crate::layers::mixer::Mixer;
use crate::layers::moe::{MoeBlocks, MoeShape, SharedShape};
use crate::layers::mtp::MtpNames;
use crate::layers::norm::NormWeights;
use crate::layers::rope;
use crate::load::LoadError;
use crate::model::{Build, Model};

pub(crate) const FAMILY: Family =
    Family { name: "qwen3_5_moe", model_types: &["qwen3_5_moe", "qwen3_5_moe_text"], build };

fn attention_shape(config: &Config) -> Result<AttentionShape, LoadError> {
    let has_bias = config.bool("attention_bias")?;
    Ok(AttentionShape {
        norms: QkNorm::PerHead,
        is_gated: true,
        has_qkv_bias: has_bias,
        has_output_bias: has_bias,
        ..AttentionShape::read(config)?
    })
}

/// Routed experts and a gated shared one, as in Qwen3-Next.
pub(super) fn moe_shape(config: &Config) -> Result<MoeShape, LoadError> {
    let shape = MoeShape::read(config, "num_experts", "moe_intermediate_size")?;
    let shared = SharedShape {
        name: "shared_expert",
        intermediate: config.usize("shared_expert_intermediate_size")?,
        gate: Some("shared_expert_gate"),
    };
    Ok(MoeShape { shared: Some(shared), ..shape })
}

fn build(config: &Config, build: &mut Build<'_>) -> Result<Box<dyn Model>, LoadError> {
    let outline = Outline::read(config)?;
    let (attention, delta_net) = (attention_shape(config)?, DeltaNetShape::read(config)?);
    let moe = moe_shape(config)?;
    let is_full = full_attention_layers(config, outline.n_layers)?;
    let rope = rope::read(config, attention.head_dim)?;
    let stored = match is_full.iter().position(|is_full| !is_full) {
        Some(i) => delta_net.stored_norms(&format!("layers.{i}.linear_attn"), build)?,
        None => NormWeights::ZeroCentred,
    };
    let rope = build.backend().load_rope(rope);
    let mut builder = Builder::new(outline, stored, build);
    let attention = AttentionBlocks::new(attention, rope, &mut builder);
    let delta_net = DeltaNetBlocks::new(delta_net, &mut builder);
    let moe = MoeBlocks::new(moe, &mut builder);
    let mtp = MtpNames::qwen();
    builder.finish_with(Some(mtp), |builder, idx, name| {
        let mixer: Box<dyn Mixer> = if *is_full.get(idx.idx()).unwrap_or(&true) {
            Box::new(attention.load(&format!("{name}.self_attn"), builder)?)
        } else {
            Box::new(linear_attention(&delta_net, &format!("{name}.linear_attn"), builder)?)
        };
        let scoring = Scoring::softmax(true);
        let mlp = Mlp::Moe(moe.load(idx, &format!("{name}.mlp"), scoring, builder)?);
        builder.layer(name, mixer, mlp)
    })
}

pub(super) fn linear_attention(
    blocks: &DeltaNetBlocks,
    name: &str,
    builder: &mut Builder<'_, '_>,
) -> Result<DeltaNetLayer, LoadError> {
    let (shape, hidden) = (blocks.shape, builder.outline.hidden);
    let input = InProjections {
        qkv: builder.projection(&format!("{name}.in_proj_qkv"), shape.channels(), hidden)?,
        z: builder.projection(&format!("{name}.in_proj_z"), shape.v_cols(), hidden)?,
        a: builder.gate(&format!("{name}.in_proj_a"), shape.n_v_heads, hidden)?,
        b: builder.gate(&format!("{name}.in_proj_b"), shape.n_v_heads, hidden)?,
    };
    blocks.load(name, input, builder)
}
