//! The architecture of GGUF files, whose towers are in files of their own.

use moeflux_core::checkpoint::FormatError;
use moeflux_core::gguf::Architecture;
use moeflux_core::gguf::arch::grouped::USUAL;
use moeflux_core::gguf::arch::keys::Keys;
use moeflux_core::gguf::arch::names::{EXPERTS, GROUPED, Names};
use moeflux_core::gguf::arch::rope::Yarn;
use moeflux_core::gguf::arch::{grouped, rope, routing};
use serde_json::json;

pub(super) static ARCHITECTURE: Architecture = Architecture {
    has_sections: true,
    ..Architecture::new("qwen3vlmoe", "qwen3_vl_moe_text", config, Names::new(&[GROUPED, EXPERTS]))
};

/// Layers that take what a tower saw (`n_deepstack_layers`) add nothing to a text.
fn config(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    let head_dim = grouped::attention(keys)?;
    routing::routed(keys, USUAL)?;
    grouped::softmax(keys)?;
    keys.put("norm_topk_prob", json!(true));
    rope::rotates_whole(keys, head_dim)?;
    rope::check_sections(keys, head_dim)?;
    rope::scaling(keys, Yarn::USUAL)?;
    rope::three_sections(keys)
}
