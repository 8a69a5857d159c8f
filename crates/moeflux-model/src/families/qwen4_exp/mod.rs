//! Qwen3.8-Flash-Next: a residual of several streams, GatedDeltaNet layers with gated sparse
//! attention every few layers, embeddings of hashed n-grams, softmax routing, a gated shared expert.
//! As in transformers' `modeling_qwen4_exp`.

mod gguf;
mod shapes;
mod tokenizer;

use moeflux_backend::{GateFunction, Rope, RopeSpec, Scoring};
use moeflux_core::checkpoint::Config;

use super::Family;
use crate::decoders::hybrid::{self, attention_shape};
use crate::layers::attention::{AttentionBlocks, AttentionShape};
use crate::layers::builder::{Builder, Outline, Streams};
use crate::layers::delta_net::{DeltaNetBlocks, DeltaNetShape, full_attention_layers_named};
use crate::layers::layer::{Body, Half, Layer};
use crate::layers::mixer::Mixer;
use crate::layers::moe::MoeBlocks;
use crate::layers::mtp::MtpNames;
use crate::layers::ngram::{NgramBlocks, NgramEmbedShape};
use crate::layers::norm::NormWeights;
use crate::layers::pool_indexer::{PoolIndexerBlocks, PoolIndexerShape};
use crate::layers::sections::{Sections, read_rope};
use crate::layers::streams::StreamsShape;
use crate::load::LoadError;
use crate::model::{Build, Model};
use crate::towers;

pub(crate) const FAMILY: Family = Family {
    gguf: Some(&gguf::ARCHITECTURE),
    shapes: shapes::SHAPES,
    tokenizer: tokenizer::TOKENIZER,
    tower: Some(towers::stacked::TOWER),
    ..Family::new("qwen4_exp", &["qwen4_exp", "qwen4_exp_text"], include_str!("keys.json"), build)
};

/// Names of layers that attend.
const ATTENTION: [&str; 3] = ["full_attention", "indexed_attention", "qwen_sparse_attention"];

fn delta_net_shape(config: &Config) -> Result<DeltaNetShape, LoadError> {
    let key = "output_gate_type";
    let gate = match config.get(key).map(|value| value.as_str()) {
        None | Some(Some("silu" | "swish")) => GateFunction::Silu,
        Some(Some("sigmoid")) => GateFunction::Sigmoid,
        Some(_) => return Err(config.refuse(key, "be null, \"silu\" or \"sigmoid\"").into()),
    };
    Ok(DeltaNetShape { gate, ..DeltaNetShape::read(config)? })
}

/// The n-gram embeddings, which stand in layers without attention.
fn ngram_shape(config: &Config, is_full: &[bool]) -> Result<Option<NgramEmbedShape>, LoadError> {
    let shape = NgramEmbedShape::read(config)?;
    if let Some(shape) = &shape
        && shape.layers.iter().any(|layer| is_full[*layer])
    {
        return Err(config.refuse("ple_layer_ids", "name no layer with attention").into());
    }
    Ok(shape)
}

/// What all layers are loaded from.
struct Blocks {
    is_full: Vec<bool>,
    attention: AttentionBlocks,
    indexer: PoolIndexerBlocks,
    delta_net: DeltaNetBlocks,
    ngram: Option<NgramBlocks>,
    moe: MoeBlocks,
    renormalise: bool,
}

impl Blocks {
    fn new(
        config: &Config,
        is_full: Vec<bool>,
        builder: &mut Builder<'_, '_>,
    ) -> Result<Blocks, LoadError> {
        let sections = Some(Sections::Interleaved([11, 11, 10]));
        let shape = AttentionShape { sections, ..attention_shape(config)? };
        let (rope, rope_dim) = load_rope(read_rope(config, shape.head_dim, sections)?, builder);
        let indexer = PoolIndexerShape::read(config, rope_dim)?;
        let Some(Streams::Gated(streams)) = builder.residual.streams else {
            unreachable!("a residual of several streams that gates read");
        };
        let ngram = ngram_shape(config, &is_full)?;
        Ok(Blocks {
            attention: AttentionBlocks::new(shape, rope, builder),
            indexer: PoolIndexerBlocks::new(indexer, rope, builder),
            delta_net: DeltaNetBlocks::new(delta_net_shape(config)?, builder),
            ngram: ngram.map(|shape| NgramBlocks::new(shape, streams, builder)),
            moe: MoeBlocks::new(hybrid::moe_shape(config)?, builder),
            renormalise: config.bool("norm_topk_prob")?,
            is_full,
        })
    }

    fn mixer(
        &self,
        layer: usize,
        name: &str,
        builder: &mut Builder<'_, '_>,
    ) -> Result<Box<dyn Mixer>, LoadError> {
        // The layer of multi-token prediction, past the last, attends.
        if !*self.is_full.get(layer).unwrap_or(&true) {
            let name = format!("{name}.linear_attn");
            return Ok(Box::new(hybrid::linear_attention(&self.delta_net, &name, builder)?));
        }
        let mut mixer = self.attention.load(&format!("{name}.self_attn"), builder)?;
        let indexer = format!("{name}.self_attn.indexer");
        mixer.indexer = Some(self.indexer.load(&indexer, builder)?);
        Ok(Box::new(mixer))
    }
}

/// A rotation, and how many columns it turns.
fn load_rope(spec: RopeSpec, builder: &mut Builder<'_, '_>) -> (Rope, usize) {
    let rope_dim = 2 * spec.inv_freq.len();
    (builder.build.backend().load_rope(spec), rope_dim)
}

fn build(config: &Config, build: &mut Build<'_>) -> Result<Box<dyn Model>, LoadError> {
    let outline = Outline::read(config)?;
    let streams = StreamsShape::read(config)?;
    let is_full = full_attention_layers_named(config, outline.n_layers, &ATTENTION)?;
    let stored = match is_full.iter().position(|is_full| !is_full) {
        Some(i) => {
            let name = format!("layers.{i}.linear_attn");
            delta_net_shape(config)?.stored_norms(&name, build)?
        }
        None => NormWeights::ZeroCentred,
    };
    let mut builder = Builder::of_streams(streams, outline, stored, build);
    let blocks = Blocks::new(config, is_full, &mut builder)?;
    builder.finish_with(Some(MtpNames::qwen_streams()), |builder, idx, name| {
        let ngram = match &blocks.ngram {
            Some(ngram) => ngram.load(idx.idx(), &format!("{name}.ple"), builder)?,
            None => None,
        };
        let mixer = blocks.mixer(idx.idx(), name, builder)?;
        let scoring = Scoring::softmax(blocks.renormalise);
        let mlp = Body::Moe(blocks.moe.load(idx, &format!("{name}.mlp"), scoring, builder)?);
        let mut layer = Layer::load(builder, name, mixer, mlp)?;
        if let Some(ngram) = ngram {
            layer.halves.insert(0, Half::Rows(Box::new(ngram)));
        }
        Ok(layer)
    })
}

#[cfg(test)]
mod tests;
