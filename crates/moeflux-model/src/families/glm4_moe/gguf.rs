//! The architecture of GGUF files.

use moeflux_core::checkpoint::FormatError;
use moeflux_core::gguf::Architecture;
use moeflux_core::gguf::arch::keys::Keys;
use moeflux_core::gguf::arch::names::{EXPERTS, GROUPED, Names, POST_NORM, SHARED_EXPERTS};
use moeflux_core::gguf::arch::rope::Yarn;
use moeflux_core::gguf::arch::routing::Gating;
use moeflux_core::gguf::arch::{grouped, rope, routing};
use serde_json::json;

pub(super) static ARCHITECTURE: Architecture = Architecture::new(
    "glm4moe",
    "glm4_moe",
    config,
    Names::new(&[GROUPED, POST_NORM, EXPERTS, SHARED_EXPERTS]),
)
.gated_by(Gating::Sigmoid);

fn config(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    layers(keys).map(drop)
}

/// Writes the keys of GLM-4.5's layers, which the text of GLM-4.5V has, too; returns the columns of a head.
pub(in super::super) fn layers(keys: &mut Keys<'_>) -> Result<usize, FormatError> {
    let head_dim = grouped::attention(keys)?;
    routing::deepseek(keys)?;
    routing::gating(keys, Gating::Sigmoid, Some(Gating::Sigmoid))?;
    keys.put("use_qk_norm", json!(keys.any_has("attn_q_norm.weight")));
    rope::rotated_part(keys, head_dim)?;
    rope::scaling(keys, Yarn::USUAL)?;
    Ok(head_dim)
}
