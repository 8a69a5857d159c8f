//! The architecture of GGUF files.

use moeflux_core::checkpoint::FormatError;
use moeflux_core::gguf::Architecture;
use moeflux_core::gguf::arch::grouped::USUAL;
use moeflux_core::gguf::arch::keys::Keys;
use moeflux_core::gguf::arch::names::{EXPERTS, GROUPED, Names};
use moeflux_core::gguf::arch::rope::Yarn;
use moeflux_core::gguf::arch::{grouped, rope, routing};
use serde_json::json;

pub(super) static ARCHITECTURE: Architecture =
    Architecture::new("qwen3moe", "qwen3_moe", config, Names::new(&[GROUPED, EXPERTS]));

fn config(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    let head_dim = grouped::attention(keys)?;
    routing::routed(keys, USUAL)?;
    grouped::softmax(keys)?;
    keys.put("norm_topk_prob", json!(true));
    rope::rotates_whole(keys, head_dim)?;
    rope::scaling(keys, Yarn::USUAL)
}
