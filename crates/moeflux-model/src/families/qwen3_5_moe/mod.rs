//! Qwen3.5 and Qwen3.6 mixture-of-experts models: GatedDeltaNet layers with
//! gated full attention every few layers, softmax routing, a gated shared
//! expert. As in transformers' `modeling_qwen3_5_moe`.

mod gguf;
mod shapes;
mod tokenizer;

use moeflux_backend::Scoring;
use moeflux_core::checkpoint::Config;

use super::Family;
use crate::decoders::hybrid::{attention_shape, linear_attention, moe_shape};
use crate::layers::attention::{AttentionBlocks, AttentionShape};
use crate::layers::builder::{Builder, Outline};
use crate::layers::delta_net::{DeltaNetBlocks, DeltaNetShape, full_attention_layers};
use crate::layers::layer::{Body, Layer};
use crate::layers::mixer::Mixer;
use crate::layers::moe::MoeBlocks;
use crate::layers::mtp::MtpNames;
use crate::layers::norm::NormWeights;
use crate::layers::sections::{Sections, read_rope};
use crate::load::LoadError;
use crate::model::{Build, Model};
use crate::towers;

pub(crate) const FAMILY: Family = Family {
    gguf: Some(&gguf::ARCHITECTURE),
    shapes: shapes::SHAPES,
    tokenizer: tokenizer::TOKENIZER,
    tower: Some(towers::stacked::TOWER),
    ..Family::new(
        "qwen3_5_moe",
        &["qwen3_5_moe", "qwen3_5_moe_text"],
        include_str!("keys.json"),
        build,
    )
};

fn build(config: &Config, build: &mut Build<'_>) -> Result<Box<dyn Model>, LoadError> {
    let outline = Outline::read(config)?;
    let sections = Some(Sections::Interleaved([11, 11, 10]));
    let attention = AttentionShape { sections, ..attention_shape(config)? };
    let delta_net = DeltaNetShape::read(config)?;
    let moe = moe_shape(config)?;
    let is_full = full_attention_layers(config, outline.n_layers)?;
    let rope = read_rope(config, attention.head_dim, sections)?;
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
        let mlp = Body::Moe(moe.load(idx, &format!("{name}.mlp"), scoring, builder)?);
        Layer::load(builder, name, mixer, mlp)
    })
}
