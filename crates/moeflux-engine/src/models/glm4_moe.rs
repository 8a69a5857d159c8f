//! GLM-4.5 and GLM-4.6: grouped-query attention that rotates half of each
//! head, a few dense layers first, sigmoid routing and shared experts. As in
//! transformers' `modeling_glm4_moe`.

use moeflux_core::checkpoint::Config;

use super::{Build, Family, Model};
use crate::layers::attention::{AttentionBlocks, AttentionShape, QkNorm};
use crate::layers::decoder::{Builder, Mlp, Outline};
use crate::layers::dense::{Dense, GatedScratch};
use crate::layers::moe::{MoeBlocks, MoeShape, SharedShape, first_dense_layers};
use crate::layers::norm::NormWeights;
use crate::layers::rope;
use crate::layers::routing::SigmoidRouting;
use crate::load::LoadError;

pub(crate) const FAMILY: Family = Family { name: "glm4_moe", model_types: &["glm4_moe"], build };

fn attention_shape(config: &Config) -> Result<AttentionShape, LoadError> {
    let is_normalised = config.bool_or("use_qk_norm", false)?;
    Ok(AttentionShape {
        norms: if is_normalised { QkNorm::PerHead } else { QkNorm::None },
        has_qkv_bias: config.bool_or("attention_bias", false)?,
        ..AttentionShape::read(config)?
    })
}

fn build(config: &Config, build: &mut Build<'_>) -> Result<Box<dyn Model>, LoadError> {
    let outline = Outline { eps: config.f32_or("rms_norm_eps", 1e-5)?, ..Outline::read(config)? };
    let attention = attention_shape(config)?;
    let mut moe = MoeShape::read(config, "moe_intermediate_size")?;
    moe.shared = SharedShape::read(config, moe.intermediate)?;
    let routing = SigmoidRouting::read(config, &mut moe)?;
    let n_dense = first_dense_layers(config, outline.n_layers)?;
    let dense = (n_dense > 0).then(|| config.usize("intermediate_size")).transpose()?;
    let rope = rope::read(config, attention.head_dim, 0.5)?;
    let rope = build.backend().load_rope(rope);
    let mut builder = Builder::new(outline, NormWeights::Plain, build);
    let n_experts = moe.n_experts;
    let attention = AttentionBlocks::new(attention, rope, &mut builder);
    let moe = MoeBlocks::new(moe, &mut builder);
    let dense = dense.map(|it| GatedScratch::alloc(it, &mut builder));
    builder.finish(|builder, idx, name| {
        let mixer = Box::new(attention.load(&format!("{name}.self_attn"), builder)?);
        let block = format!("{name}.mlp");
        let mlp = match dense {
            Some(dense) if idx.idx() < n_dense => Mlp::Dense(Dense::load(dense, &block, builder)?),
            _ => {
                let bias = format!("{block}.gate.e_score_correction_bias");
                let bias = Some(builder.vector(&bias, n_experts)?);
                Mlp::Moe(moe.load(idx, &block, routing.scoring(bias), builder)?)
            }
        };
        builder.layer(name, mixer, mlp)
    })
}
