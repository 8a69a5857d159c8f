//! Ling and Ring of the second generation: the attention of the first, and experts that biased sigmoid
//! scores choose. As in the publisher's `modeling_bailing_moe_v2`.

mod gguf;
mod shapes;

use moeflux_core::checkpoint::Config;

use super::Family;
use super::bailing_moe::{TERMS, attention_shape, outline};
use super::family::OwnClass;
use crate::decoders::grouped;
use crate::layers::attention::{AttentionShape, QkNorm};
use crate::layers::mlps::MlpShape;
use crate::load::LoadError;
use crate::model::{Build, Model};

/// Configs name it as the first generation, whose class it does not have.
pub(crate) const FAMILY: Family = Family {
    gguf: Some(&gguf::ARCHITECTURE),
    shapes: shapes::SHAPES,
    class: Some(OwnClass { model_type: "bailing_moe", class: "BailingMoeV2ForCausalLM" }),
    ..Family::new("bailing_moe_v2", &["bailing_moe_v2"], include_str!("keys.json"), build)
};

fn build(config: &Config, build: &mut Build<'_>) -> Result<Box<dyn Model>, LoadError> {
    // The reference does not renormalise the weight of a single expert.
    if config.usize("num_experts_per_tok")? == 1 {
        return Err(config.refuse("num_experts_per_tok", "be at least 2").into());
    }
    let is_normalised = config.bool("use_qk_norm")?;
    let attention = AttentionShape {
        norms: if is_normalised { QkNorm::PerHead } else { QkNorm::None },
        ..attention_shape(config)?
    };
    let outline = outline(config)?;
    let mlps = MlpShape::read(config, outline.n_layers, TERMS)?;
    grouped::of_mlps(config, outline, attention, mlps, None, build)
}
