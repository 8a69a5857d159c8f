//! ERNIE 4.5: grouped-query attention that rotates neighbouring columns, a dense layer, then experts
//! that biased probabilities choose. As in transformers' `modeling_ernie4_5_moe`.

mod gguf;
mod shapes;

use moeflux_backend::{PerExpert, RopePairs, RopeSpec, Scoring};
use moeflux_core::Spelling;
use moeflux_core::checkpoint::Config;

use super::Family;
use crate::layers::attention::{AttentionBlocks, AttentionShape};
use crate::layers::builder::{Builder, Outline};
use crate::layers::dense::{Dense, MlpScratch};
use crate::layers::layer::{Body, Layer};
use crate::layers::moe::{MoeBlocks, MoeShape};
use crate::layers::norm::NormWeights;
use crate::layers::rope;
use crate::layers::shared_expert::SharedShape;
use crate::load::LoadError;
use crate::model::{Build, Model};

pub(crate) const FAMILY: Family = Family {
    gguf: Some(&gguf::ARCHITECTURE),
    shapes: shapes::SHAPES,
    mtp_parts: &["mtp_block", "mtp_emb_norm", "mtp_hidden_norm", "mtp_linear_proj"],
    spellings: &[Spelling::within(".mlp.gate.moe_statics.", ".mlp.moe_statics.")],
    ..Family::new("ernie4_5_moe", &["ernie4_5_moe"], include_str!("keys.json"), build)
};

fn moe_shape(config: &Config) -> Result<MoeShape, LoadError> {
    let shape = MoeShape::read(config, "num_experts", "moe_intermediate_size")?;
    let n_shared = "moe_num_shared_experts";
    let shared = SharedShape::read(config, n_shared, "shared_experts", shape.intermediate)?;
    Ok(MoeShape { shared, ..shape })
}

/// Which layers have routed experts: some of those from one index to another.
fn sparse_layers(config: &Config, n_layers: usize) -> Result<Vec<bool>, LoadError> {
    let start = config.usize_in("moe_layer_start_index", 0..=n_layers - 1)?;
    let interval = config.usize("moe_layer_interval")?;
    let key = "moe_layer_end_index";
    let end = match config.get(key).and_then(serde_json::Value::as_i64) {
        Some(-1) => n_layers - 1,
        _ => config.usize_in(key, 0..=1000)?,
    };
    let is_sparse = |i: usize| (start..=end).contains(&i) && (i + 1).is_multiple_of(interval);
    let layers: Vec<bool> = (0..n_layers).map(is_sparse).collect();
    if !layers.contains(&true) {
        return Err(config.refuse(key, "leave experts to some layer").into());
    }
    Ok(layers)
}

fn build(config: &Config, build: &mut Build<'_>) -> Result<Box<dyn Model>, LoadError> {
    let outline = Outline::read(config)?;
    let attention = AttentionShape::read(config)?;
    let moe = moe_shape(config)?;
    let is_sparse = sparse_layers(config, outline.n_layers)?;
    let has_dense = is_sparse.contains(&false);
    let dense = has_dense.then(|| config.usize("intermediate_size")).transpose()?;
    let rope = rope::read(config, attention.head_dim)?;
    let rope = build.backend().load_rope(RopeSpec { pairs: RopePairs::Adjacent, ..rope });
    let n_experts = moe.n_experts;
    let mut builder = Builder::new(outline, NormWeights::Plain, build);
    let attention = AttentionBlocks::new(attention, rope, &mut builder);
    let moe = MoeBlocks::new(moe, &mut builder);
    let dense = dense.map(|cols| MlpScratch::alloc(cols, &mut builder));
    builder.finish(|builder, idx, name| {
        let mixer = Box::new(attention.load(&format!("{name}.self_attn"), builder)?);
        let mlp = format!("{name}.mlp");
        if let Some(dense) = dense.filter(|_| !is_sparse[idx.idx()]) {
            let mlp = Body::Dense(Dense::load(dense, &mlp, builder)?);
            return Layer::load(builder, name, mixer, mlp);
        }
        let bias = format!("{mlp}.moe_statics.e_score_correction_bias");
        let shapes = [vec![1, n_experts], vec![n_experts]];
        let bias = builder.build.weights.vector(&bias, &shapes)?.values;
        let bias = builder.build.backend().load_vector(&bias);
        let per_expert = Some(PerExpert::Bias(bias));
        let scoring = Scoring::Softmax { per_expert, groups: None, renormalise: true, scale: 1.0 };
        let moe = moe.load(idx, &mlp, scoring, builder)?;
        Layer::load(builder, name, mixer, Body::Moe(moe))
    })
}

#[cfg(test)]
mod tests;
