//! Ling and Ring of the first generation: grouped-query attention whose queries, keys and values are
//! one projection, and experts that probabilities choose. As in the publisher's `modeling_bailing_moe`.

pub(super) mod gguf;
mod shapes;
mod tokenizer;

use moeflux_backend::RopePairs;
use moeflux_core::checkpoint::Config;

use super::Family;
use crate::decoders::grouped;
use crate::layers::attention::{AttentionNames, AttentionShape};
use crate::layers::builder::Outline;
use crate::layers::mlps::{MlpShape, MlpTerms};
use crate::load::LoadError;
use crate::model::{Build, Model};

pub(crate) const FAMILY: Family = Family {
    gguf: Some(&gguf::ARCHITECTURE),
    shapes: shapes::SHAPES,
    tokenizer: tokenizer::TOKENIZER,
    ..Family::new("bailing_moe", &["bailing_moe"], include_str!("keys.json"), build)
};

const NAMES: AttentionNames = AttentionNames {
    block: "attention",
    joined: Some("query_key_value"),
    output: "dense",
    q_norm: "query_layernorm",
    k_norm: "key_layernorm",
};

/// Of both generations.
pub(super) const TERMS: MlpTerms = MlpTerms {
    n_experts: "num_experts",
    n_shared: "num_shared_experts",
    bias: "gate.expert_bias",
    ..MlpTerms::USUAL
};

/// What both generations have.
pub(super) fn attention_shape(config: &Config) -> Result<AttentionShape, LoadError> {
    Ok(AttentionShape {
        has_qkv_bias: config.bool("use_qkv_bias")?,
        has_output_bias: config.bool("use_bias")?,
        names: NAMES,
        ..AttentionShape::read(config)?
    })
}

/// That of both generations.
pub(super) fn outline(config: &Config) -> Result<Outline, LoadError> {
    Ok(Outline { embedding: "word_embeddings", ..Outline::read(config)? })
}

fn build(config: &Config, build: &mut Build<'_>) -> Result<Box<dyn Model>, LoadError> {
    if config.rope_str("rope_type")?.is_some_and(|kind| kind != "default") {
        let stored = config.value().get("rope_scaling").filter(|scaling| !scaling.is_null());
        let err = match stored {
            Some(scaling) => config.refuse_value("rope_scaling", scaling, "be absent"),
            None => config.refuse("rope_type", "be \"default\""),
        };
        return Err(err.into());
    }
    let outline = outline(config)?;
    let mlps = MlpShape::by_softmax(config, outline.n_layers, TERMS)?;
    let is_interleaved = config.bool_or("rope_interleave", false)?;
    let pairs = if is_interleaved { RopePairs::Adjacent } else { RopePairs::Halves };
    let attention = AttentionShape { pairs, ..attention_shape(config)? };
    grouped::of_mlps(config, outline, attention, mlps, None, build)
}

#[cfg(test)]
mod tests;
