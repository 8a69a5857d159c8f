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

/// GLM-4.7-Flash, whose first files do not say that its routing is by sigmoid: its numbers of
/// layers, with that for multi-token prediction and without, and of tokens.
const FLASH_BLOCKS: [usize; 2] = [47, 48];
const FLASH_VOCAB: usize = 154_880;

fn config(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    let is_flash = FLASH_BLOCKS.contains(&keys.n_blocks)
        && keys.written("vocab_size") == Some(&json!(FLASH_VOCAB));
    let absent = if is_flash { Gating::Sigmoid } else { Gating::Softmax };
    latent::latent(keys, absent)?;
    keys.put("rope_interleave", json!(true));
    Ok(())
}
