//! Hy3: grouped-query attention with normalised queries and keys, a dense layer, then DeepSeek-V3's
//! experts under other names. As in transformers' `modeling_hy_v3`.

mod gguf;
mod shapes;

use moeflux_core::Spelling;
use moeflux_core::checkpoint::Config;

use super::Family;
use crate::decoders::grouped;
use crate::layers::attention::{AttentionShape, QkNorm};
use crate::layers::mlps::MlpTerms;
use crate::layers::mtp::MtpNames;
use crate::load::LoadError;
use crate::model::{Build, Model};

pub(crate) const FAMILY: Family = Family {
    gguf: Some(&gguf::ARCHITECTURE),
    shapes: shapes::SHAPES,
    spellings: &[
        Spelling::end(".mlp.gate.weight", ".mlp.router.gate.weight"),
        Spelling::end(".mlp.e_score_correction_bias", ".mlp.expert_bias"),
        Spelling::within(".mlp.shared_experts.", ".mlp.shared_mlp."),
    ],
    ..Family::new("hy_v3", &["hy_v3"], include_str!("keys.json"), build)
};

const TERMS: MlpTerms = MlpTerms {
    n_experts: "num_experts",
    n_shared: "num_shared_experts",
    scale: "router_scaling_factor",
    router: "router.gate",
    bias: "expert_bias",
    may_lack_bias: false,
    shared: "shared_mlp",
};

fn build(config: &Config, build: &mut Build<'_>) -> Result<Box<dyn Model>, LoadError> {
    let has_bias = config.bool("attention_bias")?;
    let attention = AttentionShape {
        norms: QkNorm::PerHead,
        has_qkv_bias: has_bias,
        has_output_bias: has_bias,
        ..AttentionShape::read(config)?
    };
    let mtp = MtpNames::past_the_last(config.usize("num_hidden_layers")?);
    grouped::by_sigmoid(config, attention, TERMS, Some(mtp.with_norm("final_layernorm")), build)
}

#[cfg(test)]
mod tests;
