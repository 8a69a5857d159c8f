//! Architectures with grouped-query attention in all layers.

use serde_json::json;

use super::keys::{Keys, number};
use super::rope::{self, Yarn};
use super::routing::{self, ExpertKeys, Gating};
use crate::checkpoint::FormatError;

/// Names of Mixtral's experts in configs.
const LOCAL: ExpertKeys =
    ExpertKeys { count: "num_local_experts", intermediate: "intermediate_size" };

/// Names of Qwen's experts in configs.
pub(super) const QWEN: ExpertKeys =
    ExpertKeys { count: "num_experts", intermediate: "moe_intermediate_size" };

/// Writes heads and their columns, which it returns.
pub(super) fn attention(keys: &mut Keys<'_>) -> Result<usize, FormatError> {
    let n_heads = keys.required("attention.head_count")?;
    let n_kv_heads = keys.number("attention.head_count_kv")?.unwrap_or(n_heads);
    keys.put_from("num_key_value_heads", "attention.head_count_kv", json!(n_kv_heads));
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

pub(super) fn qwen3moe(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    let head_dim = attention(keys)?;
    routing::routed(keys, QWEN)?;
    softmax(keys)?;
    keys.put("norm_topk_prob", json!(true));
    rope::rotates_whole(keys, head_dim)?;
    rope::scaling(keys, Yarn::USUAL)
}

/// The weights of experts are their probabilities among all: they are not made to add up to 1.
pub(super) fn olmoe(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    let head_dim = attention(keys)?;
    routing::routed(keys, ExpertKeys { count: "num_experts", intermediate: "intermediate_size" })?;
    softmax(keys)?;
    keys.put("norm_topk_prob", json!(false));
    rope::rotates_whole(keys, head_dim)?;
    rope::scaling(keys, Yarn::USUAL)
}

/// Llama with experts: Mixtral. Its converter has put the columns of queries and keys that form a
/// pair of rotary embeddings next to each other.
pub(super) fn mixtral(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    let head_dim = attention(keys)?;
    routing::routed(keys, LOCAL)?;
    softmax(keys)?;
    keys.put("rope_interleave", json!(true));
    rope::rotates_whole(keys, head_dim)?;
    rope::scaling(keys, Yarn::USUAL)
}

/// Columns of queries and keys lie as Mixtral's do.
pub(super) fn granitemoe(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    let head_dim = attention(keys)?;
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
    softmax(keys)?;
    keys.put("rope_interleave", json!(true));
    rope::rotates_whole(keys, head_dim)?;
    rope::scaling(keys, Yarn::USUAL)
}

/// Softmax over all experts.
pub(super) fn softmax(keys: &Keys<'_>) -> Result<(), FormatError> {
    routing::gating(keys, Gating::Softmax, Some(Gating::Softmax))?;
    routing::unscaled(keys)
}

pub(super) fn minimax_m2(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    let head_dim = attention(keys)?;
    routing::routed(keys, LOCAL)?;
    routing::gating(keys, Gating::Sigmoid, None)?;
    routing::unscaled(keys)?;
    rope::rotated_part(keys, head_dim)?;
    rope::scaling(keys, Yarn::USUAL)
}

pub(super) fn glm4moe(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    let head_dim = attention(keys)?;
    routing::deepseek(keys)?;
    routing::gating(keys, Gating::Sigmoid, Some(Gating::Sigmoid))?;
    keys.put("use_qk_norm", json!(keys.any_has("attn_q_norm.weight")));
    rope::rotated_part(keys, head_dim)?;
    rope::scaling(keys, Yarn::USUAL)
}

pub(super) fn gpt_oss(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    let head_dim = attention(keys)?;
    routing::routed(keys, LOCAL)?;
    routing::gating(keys, Gating::SoftmaxOfChosen, Some(Gating::SoftmaxOfChosen))?;
    routing::unscaled(keys)?;
    keys.copy(&[number("sliding_window", "attention.sliding_window")])?;
    let layers: Vec<&str> = sliding_layers(keys)?
        .into_iter()
        .map(|slides| if slides { "sliding_attention" } else { "full_attention" })
        .collect();
    keys.put("layer_types", json!(layers));
    rope::rotates_whole(keys, head_dim)?;
    // The published config does not round the ends of the ramp, and files do not say it.
    rope::scaling(keys, Yarn { truncates: false, ..Yarn::USUAL })
}

/// Which layers see through a window: a list of them, or a period whose last layer sees all.
fn sliding_layers(keys: &Keys<'_>) -> Result<Vec<bool>, FormatError> {
    /// Every other layer, the first one included.
    const PERIOD: usize = 2;
    let key = "attention.sliding_window_pattern";
    if let Some(layers) = keys.bools(key)? {
        return Ok(layers);
    }
    let period = keys.number(key)?.unwrap_or(PERIOD);
    if period == 0 {
        return Err(keys.refuse(key, "be at least 1"));
    }
    Ok((0..keys.n_layers).map(|layer| layer % period + 1 < period).collect())
}
