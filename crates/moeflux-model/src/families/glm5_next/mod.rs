//! GLM-5.3-Flash: a residual of several streams that layers mix, Kimi delta attention in most of these,
//! in the others latent attention without rotation to the pools of positions that an indexer chooses.
//! As in transformers' `modeling_glm5_next`.

mod gguf;
mod shapes;

use moeflux_backend::{Decay, KvType};
use moeflux_core::Spelling;
use moeflux_core::checkpoint::Config;

use super::Family;
use crate::decoders::indexed::full_indexers;
use crate::layers::builder::{Builder, Outline};
use crate::layers::delta_net::full_attention_layers_named;
use crate::layers::expert_shape::{Activation, bounded_swiglu};
use crate::layers::gated_pool_indexer::{GatedPoolBlocks, GatedPoolShape};
use crate::layers::hyper::HyperShape;
use crate::layers::kimi_delta::{KimiDeltaBlocks, KimiDeltaShape, LINEAR};
use crate::layers::layer::Layer;
use crate::layers::mixer::Mixer;
use crate::layers::mla::{MlaBlocks, MlaShape, Positions};
use crate::layers::mlps::{MlpBlocks, MlpShape, MlpTerms};
use crate::load::LoadError;
use crate::model::{Build, Model};

pub(crate) const FAMILY: Family = Family {
    gguf: Some(&gguf::ARCHITECTURE),
    shapes: shapes::SHAPES,
    spellings: &[
        Spelling::end("hc_attn_fn", "hc_attn_fn.weight"),
        Spelling::end("hc_ffn_fn", "hc_ffn_fn.weight"),
        Spelling::end(".index_kpool_compress_gate", ".index_kpool_compress_gate.weight"),
        // As transformers holds the layers.
        Spelling::within(".forget_gate.", "."),
        Spelling::end(".attn_hc.fn", ".hc_attn_fn.weight"),
        Spelling::within(".attn_hc.", ".hc_attn_"),
        Spelling::end(".ffn_hc.fn", ".hc_ffn_fn.weight"),
        Spelling::within(".ffn_hc.", ".hc_ffn_"),
    ],
    ..Family::new(NAME, &[NAME, "glm5_next_text"], include_str!("keys.json"), build)
};

const NAME: &str = "glm5_next";

/// The names of layers that attend to what is chosen.
const ATTENTION: [&str; 3] = ["indexed_attention", "deepseek_sparse_attention", "full_attention"];

/// Without a list every fourth layer attends.
const INTERVAL: usize = 4;

/// Which layers attend.
fn attention_layers(config: &Config, n_layers: usize) -> Result<Vec<bool>, LoadError> {
    if config.get("layer_types").is_none() {
        return Ok((1..=n_layers).map(|layer| layer.is_multiple_of(INTERVAL)).collect());
    }
    full_attention_layers_named(config, n_layers, &ATTENTION)
}

/// What states decay by: bounded, unless the config takes the bound away.
fn decay(config: &Config) -> Result<Decay, LoadError> {
    let (key, own) = ("gate_lower_bound", "linear_lower_bound");
    let nested = config.part(LINEAR).filter(|linear| linear.value().get(key).is_some());
    let (config, key) = match &nested {
        Some(linear) => (linear, key),
        None => (config, own),
    };
    let is_safe = nested.as_ref().map(|linear| linear.bool_or("safe_gate", true));
    let bound = match config.get(key) {
        Some(value) => value.as_f64().map_or(0.0, |bound| bound as f32),
        None if is_safe.transpose()?.unwrap_or(false) => -5.0,
        None => return Ok(Decay::Columns),
    };
    if !(-1e3..0.0).contains(&bound) {
        return Err(config.refuse(key, "be a number from -1000 to below 0").into());
    }
    Ok(Decay::Bounded { bound })
}

fn build(config: &Config, build: &mut Build<'_>) -> Result<Box<dyn Model>, LoadError> {
    if build.variant.kv_type == KvType::Q8 {
        return Err(LoadError::EightBitIndexedCache { family: NAME });
    }
    let activation = bounded_swiglu(config)?;
    let outline = Outline { activation: Activation::Gated(activation), ..Outline::read(config)? };
    let n_layers = outline.n_layers;
    let attends = attention_layers(config, n_layers)?;
    let attention = MlaShape { latent_eps: outline.eps, ..MlaShape::unrotated(config)? };
    let Some(q_rank) = attention.q_rank else {
        return Err(config.refuse("q_lora_rank", "be a whole number: indexers read it").into());
    };
    let indexer = GatedPoolShape::read(config, q_rank)?;
    let has_indexer = full_indexers(config, &attends)?;
    let delta = KimiDeltaShape::read(config, decay(config)?)?;
    let mlps = MlpShape::read(config, n_layers, MlpTerms::USUAL)?.activated(activation);
    let streams = HyperShape::read(config)?;
    let mut builder = Builder::of_mixed_streams(streams, outline, build);
    let attention = MlaBlocks::new(attention, None, &mut builder);
    let indexers = GatedPoolBlocks::new(indexer, &mut builder);
    let delta = KimiDeltaBlocks::new(delta, &mut builder);
    let mlps = MlpBlocks::new(mlps, &mut builder);
    builder.finish(|builder, idx, name| {
        let mixer = format!("{name}.self_attn");
        let mixer: Box<dyn Mixer> = if attends[idx.idx()] {
            let mut layer = attention.load(&mixer, builder)?;
            layer.positions = if has_indexer[idx.idx()] {
                Positions::Pooled(indexers.load(&format!("{mixer}.indexer"), builder)?)
            } else {
                Positions::Chosen(indexers.selection)
            };
            Box::new(layer)
        } else {
            Box::new(delta.load(&mixer, builder)?)
        };
        let mlp = mlps.load(idx, &format!("{name}.mlp"), builder)?;
        Layer::load(builder, name, mixer, mlp)
    })
}

#[cfg(test)]
mod tests;
