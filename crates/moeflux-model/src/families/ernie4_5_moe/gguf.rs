//! The architecture of GGUF files. Files do not say which layer is the last with experts, and say a
//! width of shared experts that only one published model has: tensors show both.

use moeflux_core::checkpoint::FormatError;
use moeflux_core::gguf::Architecture;
use moeflux_core::gguf::arch::grouped::USUAL;
use moeflux_core::gguf::arch::keys::{Keys, number_or};
use moeflux_core::gguf::arch::names::{EXPERTS, GROUPED, Names, Pair, SHARED_EXPERTS};
use moeflux_core::gguf::arch::rope::Yarn;
use moeflux_core::gguf::arch::{grouped, rope, routing};
use serde_json::json;

pub(super) static ARCHITECTURE: Architecture = Architecture {
    // Files do not say how experts are chosen.
    gating: None,
    ..Architecture::new(
        "ernie4_5-moe",
        "ernie4_5_moe",
        config,
        Names::new(&[GROUPED, OWN, EXPERTS, SHARED_EXPERTS]),
    )
};

const OWN: &[Pair] = &[("exp_probs_b.bias", "mlp.moe_statics.e_score_correction_bias")];

/// The converter leaves the pairs of rotary embeddings next to each other, as they are published.
fn config(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    let head_dim = grouped::attention(keys)?;
    keys.put("use_bias", json!(keys.any_has("attn_q.bias")));
    routing::routed(keys, USUAL)?;
    routing::dense_len(keys)?;
    routing::shared_by_tensors(keys, "moe_num_shared_experts")?;
    grouped::softmax(keys)?;
    keys.copy(&[
        number_or("moe_layer_interval", "interleave_moe_layer_step", 1),
        number_or("moe_layer_start_index", "leading_dense_block_count", 0),
    ])?;
    if let Some(last) = keys.layers_with("ffn_gate_inp.weight").last() {
        keys.put("moe_layer_end_index", json!(last));
    }
    rope::rotates_whole(keys, head_dim)?;
    rope::scaling(keys, Yarn::USUAL)
}
