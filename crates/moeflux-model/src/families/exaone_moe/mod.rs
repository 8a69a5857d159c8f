//! K-EXAONE: attention over windows with rotated heads, in every fourth layer over all positions
//! without rotation; then DeepSeek-V3's experts. As in transformers' `modeling_exaone_moe`.

mod gguf;
mod shapes;
mod tokenizer;

use moeflux_core::Spelling;
use moeflux_core::checkpoint::Config;
use serde_json::Value;

use super::Family;
use crate::layers::attention::{AttentionBlocks, AttentionShape, QkNorm};
use crate::layers::builder::{Builder, Outline};
use crate::layers::layer::Layer;
use crate::layers::mlps::{MlpBlocks, MlpShape, MlpTerms};
use crate::layers::norm::NormWeights;
use crate::layers::rope;
use crate::layers::windows::windows_of_types;
use crate::load::LoadError;
use crate::model::{Build, Model};

pub(crate) const FAMILY: Family = Family {
    gguf: Some(&gguf::ARCHITECTURE),
    shapes: shapes::SHAPES,
    spellings: &[Spelling::end(
        ".mlp.gate.e_score_correction_bias",
        ".mlp.e_score_correction_bias",
    )],
    tokenizer: tokenizer::TOKENIZER,
    ..Family::new("exaone_moe", &["exaone_moe"], include_str!("keys.json"), build)
};

const TERMS: MlpTerms = MlpTerms {
    n_experts: "num_experts",
    n_shared: "num_shared_experts",
    bias: "e_score_correction_bias",
    ..MlpTerms::USUAL
};

/// How far each layer sees; nothing where there is no `sliding_window`.
fn windows(config: &Config, n_layers: usize) -> Result<Option<Vec<Option<usize>>>, LoadError> {
    let types = config.str_list("layer_types")?;
    if config.get("sliding_window").is_none() {
        let is_windowed = types.is_some_and(|types| types.contains(&"sliding_attention"));
        let refusal = || config.refuse("sliding_window", "be a number, for layers that slide");
        return if is_windowed { Err(refusal().into()) } else { Ok(None) };
    }
    let window = config.usize("sliding_window")?;
    if let Some(types) = types {
        return windows_of_types(config, &types, n_layers, window).map(Some);
    }
    let pattern = config.usize("sliding_window_pattern")?;
    let window = |i: usize| (!(i + 1).is_multiple_of(pattern)).then_some(window);
    Ok(Some((0..n_layers).map(window).collect()))
}

/// `is_moe_layer` says what `mlp_layer_types` and `first_k_dense_replace` say, which the reference
/// reads.
fn check_sparse(config: &Config, is_dense: &[bool]) -> Result<(), LoadError> {
    let Some(given) = config.get("is_moe_layer") else { return Ok(()) };
    let is_sparse = is_dense.iter().map(|is_dense| Value::Bool(!is_dense)).collect();
    if *given == Value::Array(is_sparse) {
        return Ok(());
    }
    Err(config
        .refuse("is_moe_layer", "agree with mlp_layer_types and first_k_dense_replace")
        .into())
}

fn build(config: &Config, build: &mut Build<'_>) -> Result<Box<dyn Model>, LoadError> {
    let outline = Outline::read(config)?;
    let attention = AttentionShape { norms: QkNorm::PerHead, ..AttentionShape::read(config)? };
    let windows = windows(config, outline.n_layers)?;
    let mlps = MlpShape::read(config, outline.n_layers, TERMS)?;
    check_sparse(config, &mlps.is_dense)?;
    let rope = rope::read(config, attention.head_dim)?;
    let rope = build.backend().load_rope(rope);
    let no_rope = build.backend().load_rope(rope::none());
    let mut builder = Builder::new(outline, NormWeights::Plain, build);
    let attention = AttentionBlocks::new(attention, rope, &mut builder);
    let mlps = MlpBlocks::new(mlps, &mut builder);
    builder.finish(|builder, idx, name| {
        let window = windows.as_ref().map(|windows| windows[idx.idx()]);
        let attn = format!("{name}.self_attn");
        let mut mixer = attention.load_with_window(&attn, window.flatten(), builder)?;
        if window == Some(None) {
            mixer.rope = no_rope;
        }
        let mlp = mlps.load(idx, &format!("{name}.mlp"), builder)?;
        Layer::load(builder, name, Box::new(mixer), mlp)
    })
}

#[cfg(test)]
mod tests;
