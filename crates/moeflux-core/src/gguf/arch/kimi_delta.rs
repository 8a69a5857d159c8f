//! What architectures with layers of Kimi delta attention share.

use serde_json::json;

use super::keys::{Keys, number};
use crate::checkpoint::FormatError;

/// Writes which layers are such, by their tensors, and their heads, and the rank of queries in the others.
pub fn layers(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    keys.copy(&[
        number("linear_conv_kernel_dim", "ssm.conv_kernel"),
        number("linear_head_dim", "kda.head_dim"),
        number("linear_num_heads", "attention.head_count"),
    ])?;
    // Layers of both kinds share the name of queries, which says nothing of the others' rank.
    let rank = keys.number("attention.q_lora_rank")?.filter(|_| keys.any_has("attn_q_a.weight"));
    keys.put_from("q_lora_rank", "attention.q_lora_rank", json!(rank));
    let linear = keys.layers_with("ssm_a");
    let kind = |layer: usize| {
        if linear.contains(&layer) { "linear_attention" } else { "full_attention" }
    };
    let kinds: Vec<&str> = (0..keys.n_layers).map(kind).collect();
    keys.put("layer_types", json!(kinds));
    Ok(())
}
