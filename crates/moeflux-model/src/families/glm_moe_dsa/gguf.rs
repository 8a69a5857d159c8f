//! The architecture of GGUF files.

use moeflux_core::checkpoint::FormatError;
use moeflux_core::gguf::Architecture;
use moeflux_core::gguf::arch::keys::Keys;
use moeflux_core::gguf::arch::latent;
use moeflux_core::gguf::arch::names::{EXPERTS, INDEXER, LATENT, Names, SHARED_EXPERTS};
use moeflux_core::gguf::arch::routing::Gating;
use serde_json::json;

pub(super) static ARCHITECTURE: Architecture = Architecture::new(
    "glm-dsa",
    "glm_moe_dsa",
    config,
    Names::new(&[LATENT, INDEXER, EXPERTS, SHARED_EXPERTS]),
)
.gated_by(Gating::Sigmoid);

/// A tensor that only layers with an indexer of their own have.
const OWN_INDEXER: &str = "indexer.attn_q_b.weight";

fn config(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    latent::latent(keys, Gating::Sigmoid)?;
    latent::indexer(keys)?;
    let has_indexer = match keys.bools("attention.indexer.types")? {
        Some(types) => types,
        None => {
            let layers = keys.layers_with(OWN_INDEXER);
            (0..keys.n_layers).map(|layer| layers.contains(&layer)).collect()
        }
    };
    let types: Vec<&str> =
        has_indexer.into_iter().map(|has| if has { "full" } else { "shared" }).collect();
    keys.put("indexer_types", json!(types));
    keys.name("indexer_types", "attention.indexer.types");
    Ok(())
}
