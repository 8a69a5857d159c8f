//! What architectures with gated delta nets in most layers share.

use serde_json::json;

use super::grouped::{KV_HEADS, USUAL, attention, softmax};
use super::keys::{Keys, number};
use super::rope::{self, Yarn};
use super::routing;
use crate::checkpoint::FormatError;

/// Layers from one with full attention to the next, in files that do not say it.
const INTERVAL: usize = 4;

/// Writes delta nets, attention and experts; returns the columns of a head.
pub fn hybrid(keys: &mut Keys<'_>) -> Result<usize, FormatError> {
    let head_dim = attention(keys)?;
    routing::routed(keys, USUAL)?;
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

/// Which layers have a delta net: by a list, by the heads of keys and values that they do not have, as Ollama
/// writes it, or by a period.
fn recurrent_layers(keys: &Keys<'_>) -> Result<Vec<bool>, FormatError> {
    if let Some(layers) = keys.bools("attention.recurrent_layers")? {
        return Ok(layers);
    }
    if let Some(heads) = keys.numbers(KV_HEADS)?.filter(|heads| heads.contains(&0)) {
        return Ok(heads.into_iter().map(|n| n == 0).collect());
    }
    let key = "full_attention_interval";
    let interval = keys.number(key)?.unwrap_or(INTERVAL);
    if interval == 0 {
        return Err(keys.refuse(key, "be at least 1"));
    }
    Ok((0..keys.n_layers).map(|layer| !(layer + 1).is_multiple_of(interval)).collect())
}
