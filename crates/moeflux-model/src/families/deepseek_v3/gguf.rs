//! The architecture of GGUF files.

use moeflux_core::checkpoint::FormatError;
use moeflux_core::gguf::Architecture;
use moeflux_core::gguf::arch::keys::Keys;
use moeflux_core::gguf::arch::latent;
use moeflux_core::gguf::arch::names::{EXPERTS, LATENT, Names, SHARED_EXPERTS};
use moeflux_core::gguf::arch::routing::Gating;
use serde_json::json;

pub(in super::super) static ARCHITECTURE: Architecture = Architecture::new(
    "deepseek2",
    "deepseek_v3",
    config,
    Names::new(&[LATENT, EXPERTS, SHARED_EXPERTS]),
)
.gated_by(Gating::Sigmoid);

fn config(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    let absent = latent::default_gating(keys)?;
    latent::latent(keys, absent)?;
    keys.put("rope_interleave", json!(true));
    Ok(())
}
