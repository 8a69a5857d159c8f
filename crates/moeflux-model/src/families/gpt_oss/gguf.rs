//! The architecture of GGUF files.

use moeflux_core::checkpoint::FormatError;
use moeflux_core::gguf::Architecture;
use moeflux_core::gguf::arch::grouped::LOCAL;
use moeflux_core::gguf::arch::keys::{Keys, number};
use moeflux_core::gguf::arch::names::{GROUPED, Names, POST_NORM, Pair};
use moeflux_core::gguf::arch::rope::Yarn;
use moeflux_core::gguf::arch::routing::Gating;
use moeflux_core::gguf::arch::{grouped, rope, routing};
use serde_json::json;

/// Files need not say how experts are chosen.
pub(super) static ARCHITECTURE: Architecture = Architecture {
    gating: None,
    other_name: Some("gptoss"),
    ..Architecture::new(
        "gpt-oss",
        "gpt_oss",
        config,
        Names::new(&[GROUPED, POST_NORM, EXPERTS, OF_OLLAMA]),
    )
};

/// What Ollama's own files call otherwise; they also have `ffn_norm` for the second norm.
const OF_OLLAMA: &[Pair] = &[("attn_out", "self_attn.o_proj"), ("attn_sinks", "self_attn.sinks")];

/// Routed experts with biases.
const EXPERTS: &[Pair] = &[
    ("ffn_gate_inp", "mlp.router"),
    ("ffn_gate_exps", "mlp.experts.gate_proj"),
    ("ffn_up_exps", "mlp.experts.up_proj"),
    ("ffn_down_exps", "mlp.experts.down_proj"),
];

fn config(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    let head_dim = grouped::attention(keys)?;
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
    rope::scaling(keys, Yarn { truncates: false, is_usual: true, ..Yarn::USUAL })
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
