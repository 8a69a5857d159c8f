//! OLMoE: grouped-query attention whose queries and keys are normalised over all heads together,
//! softmax routing, no dense layer. As in transformers' `modeling_olmoe`.

use moeflux_core::checkpoint::Config;

use super::Family;
use super::qwen3_moe::decoder;
use crate::layers::attention::{AttentionShape, QkNorm};
use crate::layers::moe::MoeShape;
use crate::load::LoadError;
use crate::model::{Build, Model};

pub(crate) const FAMILY: Family = Family { name: "olmoe", model_types: &["olmoe"], build };

fn build(config: &Config, build: &mut Build<'_>) -> Result<Box<dyn Model>, LoadError> {
    let has_bias = config.bool("attention_bias")?;
    let attention = AttentionShape {
        norms: QkNorm::Whole,
        has_qkv_bias: has_bias,
        has_output_bias: has_bias,
        ..AttentionShape::read(config)?
    };
    let moe = MoeShape::read(config, "num_experts", "intermediate_size")?;
    decoder(config, attention, moe, build)
}
