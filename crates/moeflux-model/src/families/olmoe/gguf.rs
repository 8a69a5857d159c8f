//! The architecture of GGUF files.

use moeflux_core::checkpoint::FormatError;
use moeflux_core::gguf::Architecture;
use moeflux_core::gguf::arch::keys::Keys;
use moeflux_core::gguf::arch::names::{EXPERTS, GROUPED, Names};
use moeflux_core::gguf::arch::rope::Yarn;
use moeflux_core::gguf::arch::routing::ExpertKeys;
use moeflux_core::gguf::arch::{grouped, rope, routing};
use serde_json::json;

pub(super) static ARCHITECTURE: Architecture =
    Architecture::new("olmoe", "olmoe", config, Names::new(&[GROUPED, EXPERTS]));

/// The weights of experts are their probabilities among all: they are not made to add up to 1.
fn config(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    let head_dim = grouped::attention(keys)?;
    routing::routed(keys, ExpertKeys { count: "num_experts", intermediate: "intermediate_size" })?;
    grouped::softmax(keys)?;
    keys.put("norm_topk_prob", json!(false));
    rope::rotates_whole(keys, head_dim)?;
    rope::scaling(keys, Yarn::USUAL)
}
