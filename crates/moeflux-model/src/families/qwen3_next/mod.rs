//! Qwen3-Next: GatedDeltaNet layers with gated full attention every few
//! layers, softmax routing, a gated shared expert. As in transformers'
//! `modeling_qwen3_next`.

use std::ops::Range;

mod gguf;
mod shapes;

use moeflux_backend::{Scoring, Weight};
use moeflux_core::checkpoint::Config;
use moeflux_core::manifest::{MatrixDecl, Role};

use super::Family;
use crate::decoders::hybrid::{self, attention_shape};
use crate::layers::attention::AttentionBlocks;
use crate::layers::builder::{Builder, Outline};
use crate::layers::delta_net::{
    DeltaNetBlocks, DeltaNetShape, InProjections, full_attention_layers,
};
use crate::layers::dense::{Dense, MlpScratch};
use crate::layers::layer::{Body, Layer};
use crate::layers::mixer::Mixer;
use crate::layers::moe::{MoeBlocks, sparse_layers};
use crate::layers::mtp::MtpNames;
use crate::layers::norm::NormWeights;
use crate::layers::rope;
use crate::load::LoadError;
use crate::model::{Build, Model};

pub(crate) const FAMILY: Family = Family {
    gguf: Some(&gguf::ARCHITECTURE),
    shapes: shapes::SHAPES,
    ..Family::new("qwen3_next", &["qwen3_next"], include_str!("keys.json"), build)
};

fn build(config: &Config, build: &mut Build<'_>) -> Result<Box<dyn Model>, LoadError> {
    let outline = Outline::read(config)?;
    let (attention, delta_net) = (attention_shape(config)?, DeltaNetShape::read(config)?);
    let moe = hybrid::moe_shape(config)?;
    let is_full = full_attention_layers(config, outline.n_layers)?;
    let is_sparse = sparse_layers(config, outline.n_layers)?;
    let has_dense = is_sparse.contains(&false);
    let dense = has_dense.then(|| config.usize("intermediate_size")).transpose()?;
    let renormalise = config.bool("norm_topk_prob")?;
    let rope = rope::read(config, attention.head_dim)?;
    let stored = match is_full.iter().position(|is_full| !is_full) {
        Some(i) => delta_net.stored_norms(&format!("layers.{i}.linear_attn"), build)?,
        None => NormWeights::ZeroCentred,
    };
    let rope = build.backend().load_rope(rope);
    let mut builder = Builder::new(outline, stored, build);
    let attention = AttentionBlocks::new(attention, rope, &mut builder);
    let delta_net = DeltaNetBlocks::new(delta_net, &mut builder);
    let moe = MoeBlocks::new(moe, &mut builder);
    let dense = dense.map(|mlp| MlpScratch::alloc(mlp, &mut builder));
    let mtp = MtpNames::qwen();
    builder.finish_with(Some(mtp), |builder, idx, name| {
        let mixer: Box<dyn Mixer> = if *is_full.get(idx.idx()).unwrap_or(&true) {
            Box::new(attention.load(&format!("{name}.self_attn"), builder)?)
        } else {
            let name = format!("{name}.linear_attn");
            let input = in_projections(&delta_net.shape, &name, builder)?;
            Box::new(delta_net.load(&name, input, builder)?)
        };
        let mlp = format!("{name}.mlp");
        let mlp = match dense {
            Some(dense) if is_sparse.get(idx.idx()) == Some(&false) => {
                Body::Dense(Dense::load(dense, &mlp, builder)?)
            }
            _ => {
                let scoring = Scoring::softmax(renormalise);
                Body::Moe(moe.load(idx, &mlp, scoring, builder)?)
            }
        };
        Layer::load(builder, name, mixer, mlp)
    })
}

/// Two matrices hold everything, key head by key head: its query, its key, the
/// values and the gates that read it; its strengths and its decays. GGUF files
/// hold the first in two parts.
fn in_projections(
    shape: &DeltaNetShape,
    name: &str,
    builder: &mut Builder<'_, '_>,
) -> Result<InProjections, LoadError> {
    let DeltaNetShape { n_k_heads, n_v_heads, k_dim, v_dim, .. } = *shape;
    let ratio = n_v_heads / n_k_heads;
    let qkvz =
        Interleaved { n_heads: n_k_heads, parts: &[k_dim, k_dim, ratio * v_dim, ratio * v_dim] };
    let ba = Interleaved { n_heads: n_k_heads, parts: &[ratio, ratio] };
    let qkvz_name = format!("{name}.in_proj_qkvz");
    let ba_name = format!("{name}.in_proj_ba");
    let qkv_name = format!("{name}.in_proj_qkv");
    let hidden = builder.outline.hidden;
    let [qkv, z] = if builder.build.weights.holds(&format!("{qkv_name}.weight")) {
        let z_name = format!("{name}.in_proj_z");
        [
            builder.projection(&qkv_name, shape.channels(), hidden)?,
            builder.projection(&z_name, shape.v_cols(), hidden)?,
        ]
    } else {
        [
            qkvz.load(0..3, &qkvz_name, Role::Projection, builder)?,
            qkvz.load(3..4, &qkvz_name, Role::Projection, builder)?,
        ]
    };
    Ok(InProjections {
        qkv,
        z,
        a: ba.load(1..2, &ba_name, Role::Gate, builder)?,
        b: ba.load(0..1, &ba_name, Role::Gate, builder)?,
    })
}

/// A matrix that holds, head by head, the rows of several parts.
struct Interleaved<'a> {
    n_heads: usize,
    /// Rows of each part in a head.
    parts: &'a [usize],
}

impl Interleaved<'_> {
    /// Some parts, each of all heads together.
    fn load(
        &self,
        parts: Range<usize>,
        name: &str,
        role: Role,
        builder: &mut Builder<'_, '_>,
    ) -> Result<Weight, LoadError> {
        let runs: Vec<Range<usize>> = parts.flat_map(|part| self.runs(part)).collect();
        let (name, cols) = (name.to_owned(), builder.outline.hidden);
        let whole = MatrixDecl { name, rows: self.n_heads * self.head_rows(), cols, role };
        builder.build.weights.matrix_rows(whole, &runs)
    }

    fn head_rows(&self) -> usize {
        self.parts.iter().sum()
    }

    /// The rows of a part, head by head.
    fn runs(&self, part: usize) -> impl Iterator<Item = Range<usize>> {
        let (len, head_rows) = (self.parts[part], self.head_rows());
        let first: usize = self.parts[..part].iter().sum();
        (0..self.n_heads).map(move |head| {
            let start = head * head_rows + first;
            start..start + len
        })
    }
}

#[cfg(test)]
mod refusals;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_the_rows_of_a_part_head_by_head() {
        let fused = Interleaved { n_heads: 2, parts: &[1, 1, 2, 2] };
        assert_eq!(fused.runs(0).collect::<Vec<_>>(), [0..1, 6..7]);
        assert_eq!(fused.runs(2).collect::<Vec<_>>(), [2..4, 8..10]);
        assert_eq!(fused.runs(3).collect::<Vec<_>>(), [4..6, 10..12]);
    }
}
