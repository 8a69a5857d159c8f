//! The architecture of GGUF files. Which layers are dense shows in their tensors.

use moeflux_core::checkpoint::FormatError;
use moeflux_core::gguf::Architecture;
use moeflux_core::gguf::arch::keys::Keys;
use moeflux_core::gguf::arch::names::{EXPERTS, GROUPED, Names, Pair};
use moeflux_core::gguf::arch::rope::Yarn;
use moeflux_core::gguf::arch::routing::{DeepseekKeys, Gating};
use moeflux_core::gguf::arch::{grouped, rope, routing};
use serde_json::json;

pub(super) static ARCHITECTURE: Architecture =
    Architecture::new("hy_v3", "hy_v3", config, Names::new(&[GROUPED, OWN, EXPERTS]))
        .gated_by(Gating::Sigmoid);

/// Biases have no ending in files.
const OWN: &[Pair] = &[
    ("ffn_gate_inp", "mlp.router.gate"),
    ("exp_probs_b", "mlp.expert_bias"),
    ("exp_probs_b.bias", "mlp.expert_bias"),
    ("ffn_gate_shexp", "mlp.shared_mlp.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_mlp.up_proj"),
    ("ffn_down_shexp", "mlp.shared_mlp.down_proj"),
    ("nextn.shared_head_norm", "final_layernorm"),
];

const KEYS: DeepseekKeys = DeepseekKeys { scale: "router_scaling_factor", ..DeepseekKeys::USUAL };

fn config(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    let head_dim = grouped::attention(keys)?;
    routing::deepseek_named(keys, KEYS)?;
    routing::layers_by_tensors(keys);
    routing::gating(keys, Gating::Sigmoid, Some(Gating::Sigmoid))?;
    routing::normalised(keys)?;
    keys.put("qk_norm", json!(keys.any_has("attn_q_norm.weight")));
    rope::rotates_whole(keys, head_dim)?;
    rope::scaling(keys, Yarn::USUAL)
}
