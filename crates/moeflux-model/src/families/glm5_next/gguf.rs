//! The architecture of GGUF files. What a layer is shows in its tensors.

use moeflux_core::checkpoint::FormatError;
use moeflux_core::gguf::Architecture;
use moeflux_core::gguf::arch::keys::{Keys, number};
use moeflux_core::gguf::arch::names::{
    EXPERTS, INDEXER, KIMI_DELTA, LATENT, MIXED_STREAMS, Names, Pair, SHARED_EXPERTS,
};
use moeflux_core::gguf::arch::routing::{self, Gating};
use moeflux_core::gguf::arch::{kimi_delta, latent, mixed_streams};
use serde_json::json;

pub(super) static ARCHITECTURE: Architecture = Architecture::new(
    "glm5-next",
    "glm5_next_text",
    config,
    Names::new(&[LATENT, INDEXER, EXPERTS, SHARED_EXPERTS, KIMI_DELTA, MIXED_STREAMS, OWN]),
)
.gated_by(Gating::Sigmoid);

const OWN: &[Pair] = &[
    ("indexer_compressor_gate", "self_attn.indexer.index_kpool_compress_gate"),
    ("indexer_compressor_ape.weight", "self_attn.indexer.index_kpool_compress_ape"),
];

fn config(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    latent::attention(keys)?;
    routing::deepseek(keys)?;
    routing::gating(keys, Gating::Sigmoid, Some(Gating::Sigmoid))?;
    routing::layers_by_tensors(keys);
    latent::indexer(keys)?;
    kimi_delta::layers(keys)?;
    mixed_streams::count(keys)?;
    keys.copy(&[number("index_kpool", "attention.indexer.kpool")])?;
    let (tail, key) = ("index_kpool_always_select_tail", "attention.indexer.kpool_select_tail");
    let selects_tail = keys.bool(key)?.unwrap_or(true);
    keys.put_from(tail, key, json!(selects_tail));
    let (bound, key) = ("linear_lower_bound", "kda.gate_lower_bound");
    let value = keys.float(key)?;
    keys.put_from(bound, key, json!(value));
    if let Some(types) = keys.bools("attention.indexer.types")? {
        let name = |is_full| if is_full { "full" } else { "shared" };
        let types: Vec<&str> = types.into_iter().map(name).collect();
        keys.put_from("indexer_types", "attention.indexer.types", json!(types));
    }
    routing::bound(keys)
}
