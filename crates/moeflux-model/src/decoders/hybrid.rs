//! What families with gated delta nets in most layers share.

use moeflux_core::checkpoint::Config;

use crate::layers::attention::{AttentionShape, QkNorm};
use crate::layers::builder::Builder;
use crate::layers::delta_net::{DeltaNetBlocks, DeltaNetLayer, InProjections};
use crate::layers::moe::MoeShape;
use crate::layers::shared_expert::SharedShape;
use crate::load::LoadError;

/// Gated attention with normalised queries and keys.
pub(crate) fn attention_shape(config: &Config) -> Result<AttentionShape, LoadError> {
    let has_bias = config.bool("attention_bias")?;
    Ok(AttentionShape {
        norms: QkNorm::PerHead,
        is_gated: true,
        has_qkv_bias: has_bias,
        has_output_bias: has_bias,
        ..AttentionShape::read(config)?
    })
}

/// Routed experts and a gated shared one.
pub(crate) fn moe_shape(config: &Config) -> Result<MoeShape, LoadError> {
    let shape = MoeShape::read(config, "num_experts", "moe_intermediate_size")?;
    let shared = SharedShape {
        name: "shared_expert",
        intermediate: config.usize("shared_expert_intermediate_size")?,
        gate: Some("shared_expert_gate"),
    };
    Ok(MoeShape { shared: Some(shared), ..shape })
}

/// A delta net whose inputs are four matrices.
pub(crate) fn linear_attention(
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
