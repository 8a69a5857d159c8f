//! The architecture of GGUF files, which Llama has too.

use moeflux_core::checkpoint::FormatError;
use moeflux_core::gguf::Architecture;
use moeflux_core::gguf::arch::grouped::LOCAL;
use moeflux_core::gguf::arch::keys::Keys;
use moeflux_core::gguf::arch::names::{GROUPED, Names, SPARSE_EXPERTS};
use moeflux_core::gguf::arch::rope::Yarn;
use moeflux_core::gguf::arch::{grouped, rope, routing};
use serde_json::json;

pub(super) static ARCHITECTURE: Architecture =
    Architecture::new("llama", "mixtral", config, Names::numbered(&[GROUPED, SPARSE_EXPERTS]));

/// The converter has put the columns of queries and keys that form a
/// pair of rotary embeddings next to each other.
fn config(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    let head_dim = grouped::attention(keys)?;
    routing::routed(keys, LOCAL)?;
    grouped::softmax(keys)?;
    keys.put("rope_interleave", json!(true));
    rope::rotates_whole(keys, head_dim)?;
    rope::scaling(keys, Yarn::USUAL)
}
