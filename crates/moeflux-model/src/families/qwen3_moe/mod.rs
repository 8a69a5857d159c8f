//! Qwen3 mixture-of-experts models: grouped-query attention with normalised
//! queries and keys, softmax routing. As in transformers' `modeling_qwen3_moe`.

mod gguf;
pub(super) mod shapes;

use moeflux_core::checkpoint::Config;

use super::Family;
use crate::decoders::grouped;
use crate::layers::attention::{AttentionShape, QkNorm};
use crate::layers::moe::MoeShape;
use crate::load::LoadError;
use crate::model::{Build, Model};

pub(crate) const FAMILY: Family = Family {
    gguf: Some(&gguf::ARCHITECTURE),
    shapes: shapes::SHAPES,
    ..Family::new("qwen3_moe", &["qwen3_moe"], include_str!("keys.json"), build)
};

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
    grouped::by_softmax(config, attention_shape(config)?, moe, build)
}

#[cfg(test)]
mod tests;
