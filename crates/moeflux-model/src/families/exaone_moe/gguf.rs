//! The architecture of GGUF files.

use moeflux_core::checkpoint::FormatError;
use moeflux_core::gguf::Architecture;
use moeflux_core::gguf::arch::keys::{Keys, number};
use moeflux_core::gguf::arch::names::{EXPERTS, GROUPED, Names, Pair, SHARED_EXPERTS};
use moeflux_core::gguf::arch::rope::Yarn;
use moeflux_core::gguf::arch::routing::{DeepseekKeys, Gating};
use moeflux_core::gguf::arch::{grouped, rope, routing};
use serde_json::json;

pub(super) static ARCHITECTURE: Architecture = Architecture::new(
    "exaone-moe",
    "exaone_moe",
    config,
    Names::new(&[GROUPED, OWN, EXPERTS, SHARED_EXPERTS]),
)
.gated_by(Gating::Sigmoid);

const OWN: &[Pair] = &[("exp_probs_b.bias", "mlp.e_score_correction_bias")];

/// From one layer that sees everything to the next, in files that do not say it.
const PERIOD: usize = 4;

fn config(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    let head_dim = grouped::attention(keys)?;
    routing::deepseek_named(keys, DeepseekKeys::USUAL)?;
    routing::gating(keys, Gating::Sigmoid, Some(Gating::Sigmoid))?;
    keys.copy(&[number("sliding_window", "attention.sliding_window")])?;
    let layers: Vec<&str> = sliding_layers(keys)?
        .into_iter()
        .map(|slides| if slides { "sliding_attention" } else { "full_attention" })
        .collect();
    keys.put("layer_types", json!(layers));
    rope::rotates_whole(keys, head_dim)?;
    rope::scaling(keys, Yarn::USUAL)
}

/// Which layers see through a window: a list of them, or a period whose last layer sees all, as does
/// the last of all.
fn sliding_layers(keys: &Keys<'_>) -> Result<Vec<bool>, FormatError> {
    let key = "attention.sliding_window_pattern";
    if let Some(layers) = keys.bools(key)? {
        return Ok(layers);
    }
    let period = keys.number(key)?.unwrap_or(PERIOD);
    if period == 0 {
        return Err(keys.refuse(key, "be at least 1"));
    }
    let n = keys.n_layers;
    Ok((1..=n).map(|i| !i.is_multiple_of(period) && i < n).collect())
}
