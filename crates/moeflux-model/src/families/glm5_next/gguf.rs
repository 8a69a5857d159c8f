//! The architecture of GGUF files. What a layer is shows in its tensors.

use moeflux_core::checkpoint::FormatError;
use moeflux_core::gguf::Architecture;
use moeflux_core::gguf::arch::keys::{Keys, number};
use moeflux_core::gguf::arch::names::{
    EXPERTS, INDEXER, KIMI_DELTA, LATENT, Names, Pair, SHARED_EXPERTS,
};
use moeflux_core::gguf::arch::routing::{self, Gating};
use moeflux_core::gguf::arch::{kimi_delta, latent};
use serde_json::json;

pub(super) static ARCHITECTURE: Architecture = Architecture::new(
    "glm5-next",
    "glm5_next_text",
    config,
    Names::new(&[LATENT, INDEXER, EXPERTS, SHARED_EXPERTS, KIMI_DELTA, OWN]),
)
.gated_by(Gating::Sigmoid);

const OWN: &[Pair] = &[
    ("hc_attn_fn", "hc_attn_fn"),
    ("hc_attn_base.weight", "hc_attn_base"),
    ("hc_attn_scale.weight", "hc_attn_scale"),
    ("hc_ffn_fn", "hc_ffn_fn"),
    ("hc_ffn_base.weight", "hc_ffn_base"),
    ("hc_ffn_scale.weight", "hc_ffn_scale"),
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
    keys.copy(&[
        number("index_kpool", "attention.indexer.kpool"),
        number("hc_mult", "hyper_connection.count"),
        number("hc_sinkhorn_iters", "hyper_connection.sinkhorn_iterations"),
    ])?;
    let (tail, key) = ("index_kpool_always_select_tail", "attention.indexer.kpool_select_tail");
    let selects_tail = keys.bool(key)?.unwrap_or(true);
    keys.put_from(tail, key, json!(selects_tail));
    for (to, from) in
        [("hc_eps", "hyper_connection.epsilon"), ("linear_lower_bound", "kda.gate_lower_bound")]
    {
        let value = keys.float(from)?;
        keys.put_from(to, from, json!(value));
    }
    if let Some(types) = keys.bools("attention.indexer.types")? {
        let name = |is_full| if is_full { "full" } else { "shared" };
        let types: Vec<&str> = types.into_iter().map(name).collect();
        keys.put_from("indexer_types", "attention.indexer.types", json!(types));
    }
    limit(keys)
}

/// Writes the bound of gates and ups, of which files have one for each layer: all must be the same.
fn limit(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    let mut found = None;
    for key in ["swiglu_clamp_exp", "swiglu_clamp_shexp"] {
        for limit in keys.floats(key)?.unwrap_or_default() {
            if found.is_some_and(|found| found != limit) {
                return Err(keys.refuse(key, "have one bound for all layers"));
            }
            found = Some(limit);
        }
    }
    let Some(limit) = found else {
        return Err(keys.refuse("swiglu_clamp_exp", "be a list of numbers"));
    };
    keys.put_from("swiglu_limit", "swiglu_clamp_exp", json!(limit));
    Ok(())
}
