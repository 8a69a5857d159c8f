//! Kimi-Linear: Kimi delta attention in most layers, latent attention without rotation in the others, and
//! experts that biased sigmoid scores choose. As in transformers' `modeling_kimi_linear`.

mod gguf;
mod shapes;

use moeflux_backend::Decay;
use moeflux_core::Spelling;
use moeflux_core::checkpoint::Config;

use super::Family;
use crate::layers::builder::{Builder, Outline};
use crate::layers::delta_net::full_attention_layers;
use crate::layers::kimi_delta::{KimiDeltaBlocks, KimiDeltaShape, LINEAR};
use crate::layers::layer::Layer;
use crate::layers::mixer::Mixer;
use crate::layers::mla::{MlaBlocks, MlaShape};
use crate::layers::mlps::{MlpBlocks, MlpShape, MlpTerms};
use crate::layers::norm::NormWeights;
use crate::load::LoadError;
use crate::model::{Build, Model};

pub(crate) const FAMILY: Family = Family {
    gguf: Some(&gguf::ARCHITECTURE),
    shapes: shapes::SHAPES,
    spellings: &[
        Spelling::within(".block_sparse_moe.", ".mlp."),
        Spelling::within(".w1.", ".gate_proj."),
        Spelling::within(".w2.", ".down_proj."),
        Spelling::within(".w3.", ".up_proj."),
        // As transformers holds the layers.
        Spelling::within(".forget_gate.", "."),
        // As mlx-lm has them.
        Spelling::within(".q_conv.conv.", ".q_conv1d."),
        Spelling::within(".k_conv.conv.", ".k_conv1d."),
        Spelling::within(".v_conv.conv.", ".v_conv1d."),
        Spelling::end(".mlp.e_score_correction_bias", ".mlp.gate.e_score_correction_bias"),
    ],
    ..Family::new("kimi_linear", &["kimi_linear"], include_str!("keys.json"), build)
};

const TERMS: MlpTerms = MlpTerms { n_experts: "num_local_experts", ..MlpTerms::USUAL };

/// The lists of layers in `linear_attn_config`, and whether their layers attend to everything.
const LISTS: [(&str, bool); 2] = [("full_attn_layers", true), ("kda_layers", false)];

/// Every fourth layer attends to everything where a config says nothing, but for the first.
const FULL_INTERVAL: usize = 4;

/// Which layers attend to everything: `layer_types` where the config has it, else the lists of layers,
/// counted from one.
fn full_attention(config: &Config, n_layers: usize) -> Result<Vec<bool>, LoadError> {
    if config.get("layer_types").is_some() {
        return full_attention_layers(config, n_layers);
    }
    let has_lists = |linear: &Config| LISTS.iter().any(|(key, _)| linear.get(key).is_some());
    let Some(linear) = config.part(LINEAR).filter(has_lists) else {
        let is_full = |layer: usize| layer > 0 && layer.is_multiple_of(FULL_INTERVAL);
        return Ok((0..n_layers).map(is_full).collect());
    };
    let mut kinds = vec![None; n_layers];
    for (key, is_full) in LISTS {
        let layers = linear.usize_list(key)?;
        for layer in layers.ok_or_else(|| linear.refuse(key, "be a list of layers"))? {
            let kind = layer.checked_sub(1).and_then(|layer| kinds.get_mut(layer));
            match kind {
                Some(kind @ None) => *kind = Some(is_full),
                _ => {
                    let rule = format!("hold each layer from 1 to {n_layers} in one list");
                    return Err(linear.refuse(key, &rule).into());
                }
            }
        }
    }
    let all: Option<Vec<bool>> = kinds.into_iter().collect();
    let rule = "have every layer in full_attn_layers or in kda_layers";
    all.ok_or_else(|| config.refuse(LINEAR, rule).into())
}

fn build(config: &Config, build: &mut Build<'_>) -> Result<Box<dyn Model>, LoadError> {
    let outline = Outline::read(config)?;
    let is_full = full_attention(config, outline.n_layers)?;
    let attention = MlaShape::unrotated(config)?;
    let delta = KimiDeltaShape::read(config, Decay::Columns)?;
    let mlps = MlpShape::read(config, outline.n_layers, TERMS)?;
    let mut builder = Builder::new(outline, NormWeights::Plain, build);
    let attention = MlaBlocks::new(attention, None, &mut builder);
    let delta = KimiDeltaBlocks::new(delta, &mut builder);
    let mlps = MlpBlocks::new(mlps, &mut builder);
    builder.finish(|builder, idx, name| {
        let mixer = format!("{name}.self_attn");
        let mixer: Box<dyn Mixer> = if is_full[idx.idx()] {
            Box::new(attention.load(&mixer, builder)?)
        } else {
            Box::new(delta.load(&mixer, builder)?)
        };
        let mlp = mlps.load(idx, &format!("{name}.mlp"), builder)?;
        Layer::load(builder, name, mixer, mlp)
    })
}

#[cfg(test)]
mod tests;
