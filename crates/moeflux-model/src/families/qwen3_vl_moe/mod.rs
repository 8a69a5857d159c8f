//! The text of Qwen3-VL's mixture-of-experts models: Qwen3's layers, whose fused experts lie the
//! other way round. Positions have three parts; those of text are equal, with which the rotation is
//! a plain one. As in transformers' `modeling_qwen3_vl_moe`.

mod gguf;
mod shapes;

use moeflux_core::checkpoint::Config;
use moeflux_core::manifest::FusedOrder;

use super::Family;
use crate::decoders::grouped;
use crate::layers::attention::{AttentionShape, QkNorm};
use crate::layers::expert_shape::{ExpertShape, GatedExpert};
use crate::layers::moe::MoeShape;
use crate::layers::sections::Sections;
use crate::load::LoadError;
use crate::model::{Build, Model};
use crate::towers;

pub(crate) const FAMILY: Family = Family {
    gguf: Some(&gguf::ARCHITECTURE),
    shapes: shapes::SHAPES,
    tower: Some(towers::stacked::WITH_DEEPSTACK),
    ..Family::new(
        "qwen3_vl_moe",
        &["qwen3_vl_moe", "qwen3_vl_moe_text"],
        include_str!("keys.json"),
        build,
    )
};

fn build(config: &Config, build: &mut Build<'_>) -> Result<Box<dyn Model>, LoadError> {
    let has_bias = config.bool("attention_bias")?;
    let attention = AttentionShape {
        norms: QkNorm::PerHead,
        has_qkv_bias: has_bias,
        has_output_bias: has_bias,
        sections: Some(Sections::Interleaved([24, 20, 20])),
        ..AttentionShape::read(config)?
    };
    let moe = MoeShape {
        expert: ExpertShape::Three(GatedExpert {
            fused: FusedOrder::GateThenUpByShape,
            ..GatedExpert::USUAL
        }),
        ..MoeShape::read(config, "num_experts", "moe_intermediate_size")?
    };
    grouped::by_softmax(config, attention, moe, build)
}

#[cfg(test)]
mod tests;
