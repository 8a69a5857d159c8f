//! Architectures with gated delta nets in most layers: Qwen3-Next and Qwen3.5.

use serde_json::json;

use super::grouped::{QWEN, attention, softmax};
use super::keys::{Keys, number};
use super::rope::{self, Yarn};
use super::routing;
use crate::checkpoint::FormatError;

/// Layers from one with full attention to the next, in files that do not say it.
const INTERVAL: usize = 4;

pub(super) fn qwen3next(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    hybrid(keys)?;
    keys.put("norm_topk_prob", json!(true));
    Ok(())
}

/// Qwen3.5: the converter has sorted the value heads by their place in the group of a key head,
/// which a permutation of columns of quantised rows could not undo.
pub(super) fn qwen35moe(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    let head_dim = hybrid(keys)?;
    keys.put("linear_value_head_order", json!("tiled"));
    rope::check_sections(keys, head_dim)
}

/// What both have; returns the columns of a head.
fn hybrid(keys: &mut Keys<'_>) -> Result<usize, FormatError> {
    let head_dim = attention(keys)?;
    routing::routed(keys, QWEN)?;
    softmax(keys)?;
    keys.copy(&[
        number("shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
        number("linear_conv_kernel_dim", "ssm.conv_kernel"),
        number("linear_key_head_dim", "ssm.state_size"),
        number("linear_num_key_heads", "ssm.group_count"),
        number("linear_num_value_heads", "ssm.time_step_rank"),
    ])?;
    let (inner, n_heads) = (keys.required("ssm.inner_size")?, keys.required("ssm.time_step_rank")?);
    if n_heads == 0 || !inner.is_multiple_of(n_heads) {
        let rule = format!("be a multiple of {}", keys.key("ssm.time_step_rank"));
        return Err(keys.refuse("ssm.inner_size", &rule));
    }
    keys.put("linear_value_head_dim", json!(inner / n_heads));
    let layers: Vec<&str> = recurrent_layers(keys)?
        .into_iter()
        .map(|recurs| if recurs { "linear_attention" } else { "full_attention" })
        .collect();
    keys.put("layer_types", json!(layers));
    rope::rotated_part(keys, head_dim)?;
    rope::scaling(keys, Yarn::USUAL)?;
    Ok(head_dim)
}

fn recurrent_layers(keys: &Keys<'_>) -> Result<Vec<bool>, FormatError> {
    if let Some(layers) = keys.bools("attention.recurrent_layers")? {
        return Ok(layers);
    }
    let key = "full_attention_interval";
    let interval = keys.number(key)?.unwrap_or(INTERVAL);
    if interval == 0 {
        return Err(keys.refuse(key, "be at least 1"));
    }
    Ok((0..keys.n_layers).map(|layer| !(layer + 1).is_multiple_of(interval)).collect())
}
