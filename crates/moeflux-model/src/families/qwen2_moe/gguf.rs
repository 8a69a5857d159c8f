//! The architecture of GGUF files.

use moeflux_core::checkpoint::FormatError;
use moeflux_core::gguf::Architecture;
use moeflux_core::gguf::arch::keys::Keys;
use moeflux_core::gguf::arch::names::{EXPERTS, GROUPED, Names, SHARED_EXPERT};
use moeflux_core::gguf::arch::rope::Yarn;
use moeflux_core::gguf::arch::{grouped, rope, routing};
use serde_json::json;

pub(super) static ARCHITECTURE: Architecture = Architecture::new(
    "qwen2moe",
    "qwen2_moe",
    config,
    Names::new(&[GROUPED, EXPERTS, SHARED_EXPERT]),
);

/// Files do not say whether the weights of experts add up to 1: they do not. Older files have no
/// width of experts; tensors show it.
fn config(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    let head_dim = grouped::attention(keys)?;
    let has_bias = ["attn_q.bias", "attn_qkv.bias"].iter().any(|part| keys.any_has(part));
    keys.put("qkv_bias", json!(has_bias));
    routing::routed_by_tensors(keys)?;
    grouped::softmax(keys)?;
    keys.put("norm_topk_prob", json!(false));
    routing::dense_len(keys)?;
    rope::rotates_whole(keys, head_dim)?;
    rope::scaling(keys, Yarn::USUAL)
}
