//! The architecture of GGUF files.

use moeflux_core::checkpoint::FormatError;
use moeflux_core::gguf::Architecture;
use moeflux_core::gguf::arch::delta;
use moeflux_core::gguf::arch::keys::Keys;
use moeflux_core::gguf::arch::names::{EXPERTS, GROUPED, Names, POST_NORM, SHARED_EXPERT};
use serde_json::json;

pub(super) static ARCHITECTURE: Architecture = Architecture::new(
    "qwen3next",
    "qwen3_next",
    config,
    Names::apart(&[GROUPED, POST_NORM, EXPERTS, SHARED_EXPERT]),
);

fn config(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    delta::hybrid(keys)?;
    keys.put("norm_topk_prob", json!(true));
    Ok(())
}
