//! The architecture of GGUF files.

use moeflux_core::checkpoint::FormatError;
use moeflux_core::gguf::Architecture;
use moeflux_core::gguf::arch::keys::Keys;
use moeflux_core::gguf::arch::names::{EXPERTS, GROUPED, Names, POST_NORM, SHARED_EXPERT};
use moeflux_core::gguf::arch::{delta, rope};
use serde_json::json;

pub(super) static ARCHITECTURE: Architecture = Architecture {
    has_sections: true,
    ..Architecture::new(
        "qwen35moe",
        "qwen3_5_moe_text",
        config,
        Names::apart(&[GROUPED, POST_NORM, EXPERTS, SHARED_EXPERT]),
    )
};

/// The converter has sorted the value heads by their place in the group of a key head,
/// which a permutation of columns of quantised rows could not undo.
fn config(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    let head_dim = delta::hybrid(keys)?;
    // Ollama's key, which its files for this architecture need not have.
    if keys.bool("ssm.v_head_reordered")? != Some(false) {
        keys.put("linear_value_head_order", json!("tiled"));
    }
    rope::check_sections(keys, head_dim)?;
    rope::three_sections(keys)
}
