//! The architecture of GGUF files, whose queries, keys and values stay one matrix.

use moeflux_core::checkpoint::FormatError;
use moeflux_core::gguf::Architecture;
use moeflux_core::gguf::arch::keys::Keys;
use moeflux_core::gguf::arch::names::{EXPERTS, Names, Pair, SHARED_EXPERTS};
use moeflux_core::gguf::arch::rope::{self, Yarn};
use moeflux_core::gguf::arch::routing::{self, DeepseekKeys, Gating};
use serde_json::json;

use super::super::bailing_moe::gguf::{ATTENTION, EMBEDDING, attention};

pub(super) static ARCHITECTURE: Architecture =
    Architecture::new("bailingmoe2", "bailing_moe_v2", config, NAMES).gated_by(Gating::Sigmoid);

const NAMES: Names = Names::new(&[JOINED, ATTENTION, EXPERTS, SHARED_EXPERTS]).around(EMBEDDING);

const JOINED: &[Pair] = &[("attn_qkv", "attention.query_key_value")];

fn config(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    let head_dim = attention(keys)?;
    routing::deepseek_named(keys, DeepseekKeys::USUAL)?;
    routing::gating(keys, Gating::Sigmoid, Some(Gating::Sigmoid))?;
    routing::normalised(keys)?;
    keys.put("use_qk_norm", json!(keys.any_has("attn_q_norm.weight")));
    rope::rotated_part(keys, head_dim)?;
    rope::scaling(keys, Yarn::USUAL)
}
