//! Ling and Ring of both generations: grouped-query attention whose queries, keys and values are one
//! projection, and experts; in the first generation probabilities choose these, in the second biased
//! sigmoid scores. As in the publisher's `modeling_bailing_moe` and `modeling_bailing_moe_v2`.

use moeflux_core::checkpoint::Config;

use super::Family;
use super::deepseek_v3::{MlpShape, MlpTerms};
use super::glm4_moe::decoder_of;
use crate::layers::attention::{AttentionNames, AttentionShape, QkNorm};
use crate::layers::builder::Outline;
use crate::load::LoadError;
use crate::model::{Build, Model};

pub(crate) const BAILING_MOE: Family =
    Family { name: "bailing_moe", model_types: &["bailing_moe"], build: build_first };

/// Configs name it as the first generation, whose class it does not have.
pub(crate) const BAILING_MOE_V2: Family =
    Family { name: "bailing_moe_v2", model_types: &["bailing_moe_v2"], build: build_second };

/// The class of models of the second generation.
pub(super) const SECOND_CLASS: &str = "BailingMoeV2ForCausalLM";

const NAMES: AttentionNames = AttentionNames {
    block: "attention",
    joined: Some("query_key_value"),
    output: "dense",
    q_norm: "query_layernorm",
    k_norm: "key_layernorm",
};

const TERMS: MlpTerms = MlpTerms {
    n_experts: "num_experts",
    n_shared: "num_shared_experts",
    bias: "gate.expert_bias",
    ..MlpTerms::DEEPSEEK
};

fn attention_shape(config: &Config) -> Result<AttentionShape, LoadError> {
    Ok(AttentionShape {
        has_qkv_bias: config.bool("use_qkv_bias")?,
        has_output_bias: config.bool("use_bias")?,
        names: NAMES,
        ..AttentionShape::read(config)?
    })
}

fn outline(config: &Config) -> Result<Outline, LoadError> {
    Ok(Outline { embedding: "word_embeddings", ..Outline::read(config)? })
}

fn build_first(config: &Config, build: &mut Build<'_>) -> Result<Box<dyn Model>, LoadError> {
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
    decoder_of(config, outline, attention_shape(config)?, mlps, None, build)
}

fn build_second(config: &Config, build: &mut Build<'_>) -> Result<Box<dyn Model>, LoadError> {
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
    decoder_of(config, outline, attention, mlps, None, build)
}
