//! The architecture of GGUF files.

use moeflux_core::checkpoint::FormatError;
use moeflux_core::gguf::Architecture;
use moeflux_core::gguf::arch::keys::Keys;
use moeflux_core::gguf::arch::latent;
use moeflux_core::gguf::arch::names::{EXPERTS, INDEXER, LATENT, Names, SHARED_EXPERTS};
use moeflux_core::gguf::arch::routing::Gating;

pub(super) static ARCHITECTURE: Architecture = Architecture::new(
    "deepseek32",
    "deepseek_v32",
    config,
    Names::new(&[LATENT, INDEXER, EXPERTS, SHARED_EXPERTS]),
)
.gated_by(Gating::Sigmoid);

fn config(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    latent::latent(keys, Gating::Sigmoid)?;
    latent::indexer(keys)
}
