//! Qwen1.5-MoE and Qwen2-MoE: grouped-query attention with biases, softmax routing, a gated shared
//! expert. As in transformers' `modeling_qwen2_moe`.

mod gguf;
mod shapes;

use moeflux_core::checkpoint::Config;

use super::Family;
use crate::decoders::{grouped, hybrid};
use crate::layers::attention::AttentionShape;
use crate::load::LoadError;
use crate::model::{Build, Model};

pub(crate) const FAMILY: Family = Family {
    gguf: Some(&gguf::ARCHITECTURE),
    shapes: shapes::SHAPES,
    ..Family::new("qwen2_moe", &["qwen2_moe"], include_str!("keys.json"), build)
};

fn attention_shape(config: &Config) -> Result<AttentionShape, LoadError> {
    if let Some(types) = config.str_list("layer_types")?
        && types.iter().any(|kind| *kind != "full_attention")
    {
        return Err(config.refuse("layer_types", "hold only \"full_attention\"").into());
    }
    let has_qkv_bias = config.bool("qkv_bias")?;
    Ok(AttentionShape { has_qkv_bias, ..AttentionShape::read(config)? })
}

fn build(config: &Config, build: &mut Build<'_>) -> Result<Box<dyn Model>, LoadError> {
    grouped::by_softmax(config, attention_shape(config)?, hybrid::moe_shape(config)?, build)
}

#[cfg(test)]
mod tests;
