//! What architectures with grouped-query attention share.

use serde_json::json;

use super::keys::Keys;
use super::routing::{self, ExpertKeys, Gating};
use crate::checkpoint::FormatError;

/// The keys of experts in configs that call them local.
pub const LOCAL: ExpertKeys =
    ExpertKeys { count: "num_local_experts", intermediate: "intermediate_size" };

/// The keys of experts in most configs.
pub const USUAL: ExpertKeys =
    ExpertKeys { count: "num_experts", intermediate: "moe_intermediate_size" };

/// The key of the heads of keys and values.
pub const KV_HEADS: &str = "attention.head_count_kv";

/// Writes heads and their columns, which it returns.
pub fn attention(keys: &mut Keys<'_>) -> Result<usize, FormatError> {
    let n_heads = keys.required("attention.head_count")?;
    let n_kv_heads = keys.number_of_attention(KV_HEADS)?.unwrap_or(n_heads);
    keys.put_from("num_key_value_heads", KV_HEADS, json!(n_kv_heads));
    let hidden = keys.required("embedding_length")?;
    let key_length = "attention.key_length";
    let head_dim = match keys.number(key_length)? {
        Some(head_dim) => head_dim,
        None => hidden.checked_div(n_heads).unwrap_or(0).max(1),
    };
    keys.put_from("head_dim", key_length, json!(head_dim));
    let value_length = "attention.value_length";
    if keys.number(value_length)?.is_some_and(|value| value != head_dim) {
        let rule = format!("equal {}, which is {head_dim}", keys.key(key_length));
        return Err(keys.refuse(value_length, &rule));
    }
    let has_bias = ["attn_q.bias", "attn_qkv.bias"].iter().any(|part| keys.any_has(part));
    keys.put("attention_bias", json!(has_bias));
    Ok(head_dim)
}

/// Softmax over all experts.
pub fn softmax(keys: &Keys<'_>) -> Result<(), FormatError> {
    routing::gating(keys, Gating::Softmax, Some(Gating::Softmax))?;
    routing::unscaled(keys)
}
