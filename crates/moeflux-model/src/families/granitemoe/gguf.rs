//! The architecture of GGUF files.

use moeflux_core::checkpoint::FormatError;
use moeflux_core::gguf::Architecture;
use moeflux_core::gguf::arch::grouped::LOCAL;
use moeflux_core::gguf::arch::keys::Keys;
use moeflux_core::gguf::arch::names::{GROUPED, Names, Pair, SPARSE_EXPERTS};
use moeflux_core::gguf::arch::rope::Yarn;
use moeflux_core::gguf::arch::{grouped, rope, routing};
use serde_json::json;

pub(super) static ARCHITECTURE: Architecture = Architecture::new(
    "granitemoe",
    "granitemoe",
    config,
    Names::new(&[GROUPED, ROUTER, SPARSE_EXPERTS]),
);

/// The router.
const ROUTER: &[Pair] = &[("ffn_gate_inp", "block_sparse_moe.router.layer")];

/// The converter has put the columns of queries and keys that form a pair of rotary embeddings next to
/// each other.
fn config(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    let head_dim = grouped::attention(keys)?;
    // Each head of the usual scale, where the file does not say another.
    let usual = 1.0 / (head_dim as f64).sqrt();
    let scale = keys.float("attention.scale")?.filter(|scale| *scale != 0.0).unwrap_or(usual);
    keys.put_from("attention_multiplier", "attention.scale", json!(scale));
    for (to, from) in [
        ("embedding_multiplier", "embedding_scale"),
        ("residual_multiplier", "residual_scale"),
        ("logits_scaling", "logit_scale"),
    ] {
        let factor = keys.float(from)?.filter(|factor| *factor != 0.0).unwrap_or(1.0);
        keys.put_from(to, from, json!(factor));
    }
    let rotates = "rope.scaling.finetuned";
    if keys.bool(rotates)? == Some(false) {
        return Err(keys.refuse(rotates, "be true: layers without rotation are not run"));
    }
    routing::routed(keys, LOCAL)?;
    grouped::softmax(keys)?;
    keys.put("rope_interleave", json!(true));
    rope::rotates_whole(keys, head_dim)?;
    rope::scaling(keys, Yarn::USUAL)
}
