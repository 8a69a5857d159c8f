//! DeepSeek-V3 and R1, Cogito-V2-671B, Kimi-K2: multi-head latent attention,
//! a few dense layers, then `noaux_tc` experts. As in transformers'
//! `modeling_deepseek_v3`.

use moeflux_backend::RopeSpec;
use moeflux_core::checkpoint::Config;

use super::{Build, Family, Model};
use crate::layers::decoder::{Builder, Outline};
use crate::layers::mla::{MlaBlocks, MlaShape};
use crate::layers::noaux_tc::{Blocks, BlocksShape};
use crate::layers::norm::NormWeights;
use crate::layers::rope;
use crate::load::LoadError;

pub(crate) const FAMILY: Family = Family {
    name: "deepseek_v3",
    model_types: &["deepseek_v3", "kimi_k2"],
    build: |config, build| self::build(config, build, 3, 1e-6),
};

/// Builds a model whose config may be silent about `n_dense` leading layers
/// without experts and about the norms' `eps`.
pub(super) fn build(
    config: &Config,
    build: &mut Build<'_>,
    n_dense: usize,
    eps: f32,
) -> Result<Box<dyn Model>, LoadError> {
    let eps = config.f32_or("rms_norm_eps", eps)?;
    let outline = Outline { eps, ..Outline::read(config)? };
    let attention = MlaShape::read(config)?;
    let blocks = BlocksShape::read(config, outline.n_layers, n_dense)?;
    build.variant = blocks.limit(build.variant);
    let rope = rope::with_dim(config, attention.rope_dim)?;
    let rope = build.backend().load_rope(RopeSpec { pairs: attention.pairs, ..rope });
    let mut builder = Builder::new(outline, NormWeights::Plain, build);
    let attention = MlaBlocks::new(attention, rope, &mut builder);
    let blocks = Blocks::new(blocks, &mut builder);
    builder.finish(|builder, idx, name| {
        let mixer = Box::new(attention.load(&format!("{name}.self_attn"), builder)?);
        let mlp = blocks.load(idx, &format!("{name}.mlp"), builder)?;
        builder.layer(name, mixer, mlp)
    })
}
