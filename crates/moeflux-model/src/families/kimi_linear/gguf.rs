//! The architecture of GGUF files. What a layer is shows in its tensors.

use moeflux_core::checkpoint::FormatError;
use moeflux_core::gguf::Architecture;
use moeflux_core::gguf::arch::keys::Keys;
use moeflux_core::gguf::arch::names::{EXPERTS, KIMI_DELTA, LATENT, Names, SHARED_EXPERTS};
use moeflux_core::gguf::arch::routing::{self, DeepseekKeys, ExpertKeys, Gating};
use moeflux_core::gguf::arch::{kimi_delta, latent};
use serde_json::json;

pub(super) static ARCHITECTURE: Architecture = Architecture::new(
    "kimi-linear",
    "kimi_linear",
    config,
    Names::new(&[LATENT, EXPERTS, SHARED_EXPERTS, KIMI_DELTA]),
)
.gated_by(Gating::Sigmoid);

const KEYS: DeepseekKeys = DeepseekKeys {
    experts: ExpertKeys { count: "num_local_experts", intermediate: "moe_intermediate_size" },
    ..DeepseekKeys::OWN
};

fn config(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    latent::attention(keys)?;
    routing::deepseek_named(keys, KEYS)?;
    routing::gating(keys, Gating::Sigmoid, Some(Gating::Sigmoid))?;
    // Files do not say it: the architecture divides weights by their sum.
    keys.put("norm_topk_prob", json!(true));
    kimi_delta::layers(keys)
}
