//! The architecture of GGUF files, and what those of both generations have.

use moeflux_core::checkpoint::FormatError;
use moeflux_core::gguf::Architecture;
use moeflux_core::gguf::arch::grouped::USUAL;
use moeflux_core::gguf::arch::keys::{Keys, number_or};
use moeflux_core::gguf::arch::names::{EXPERTS, Names, OUTSIDE, Pair, SHARED_EXPERTS};
use moeflux_core::gguf::arch::rope::Yarn;
use moeflux_core::gguf::arch::{grouped, rope, routing};
use serde_json::json;

pub(super) static ARCHITECTURE: Architecture =
    Architecture::new("bailingmoe", "bailing_moe", config, NAMES);

const NAMES: Names = Names::new(&[APART, ATTENTION, EXPERTS, SHARED_EXPERTS]).around(EMBEDDING);

/// Queries, keys and values.
const APART: &[Pair] = &[
    ("attn_q", "attention.q_proj"),
    ("attn_k", "attention.k_proj"),
    ("attn_v", "attention.v_proj"),
];

/// Of both generations.
pub(in super::super) const EMBEDDING: &[Pair] =
    &[("token_embd.weight", "word_embeddings.weight"), OUTSIDE[1], OUTSIDE[2]];

/// Of both generations.
pub(in super::super) const ATTENTION: &[Pair] = &[
    ("attn_output", "attention.dense"),
    ("attn_q_norm", "attention.query_layernorm"),
    ("attn_k_norm", "attention.key_layernorm"),
    ("exp_probs_b.bias", "mlp.gate.expert_bias"),
];

/// Heads, their columns and their biases; returns the columns.
pub(in super::super) fn attention(keys: &mut Keys<'_>) -> Result<usize, FormatError> {
    let head_dim = grouped::attention(keys)?;
    let has_bias = ["attn_q.bias", "attn_qkv.bias"].iter().any(|part| keys.any_has(part));
    keys.put("use_qkv_bias", json!(has_bias));
    keys.put("use_bias", json!(keys.any_has("attn_output.bias")));
    Ok(head_dim)
}

/// The converter has put the columns of queries and keys that form a pair of rotary embeddings next
/// to each other.
fn config(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    let head_dim = attention(keys)?;
    routing::routed(keys, USUAL)?;
    routing::dense_len(keys)?;
    routing::shared(keys, "num_shared_experts")?;
    grouped::softmax(keys)?;
    keys.copy(&[number_or("first_k_dense_replace", "leading_dense_block_count", 0)])?;
    routing::normalisation(keys)?;
    keys.put("rope_interleave", json!(true));
    rope::rotates_whole(keys, head_dim)?;
    rope::scaling(keys, Yarn::USUAL)
}
