//! The architecture of GGUF files. The experts that the first layers give to tokens are a table of
//! 32-bit integers there.

use moeflux_core::checkpoint::FormatError;
use moeflux_core::gguf::Architecture;
use moeflux_core::gguf::arch::keys::{Keys, number, number_or};
use moeflux_core::gguf::arch::names::{
    EXPERTS, INDEXER, MIXED_STREAMS, Names, Pair, SHARED_EXPERTS,
};
use moeflux_core::gguf::arch::rope::{self, Yarn};
use moeflux_core::gguf::arch::routing::{self, DeepseekKeys, Gating};
use moeflux_core::gguf::arch::{latent, mixed_streams};
use serde_json::json;

pub(super) static ARCHITECTURE: Architecture = Architecture::new(
    "deepseek4",
    "deepseek_v4",
    config,
    // The family's own come first: the table of experts is no part of the router, as its name says.
    Names::new(&[OWN, INDEXER, EXPERTS, SHARED_EXPERTS, MIXED_STREAMS]).around(OUTSIDE),
)
.gated_by(Gating::SqrtSoftplus);

const OUTSIDE: &[Pair] = &[
    ("token_embd.weight", "embed_tokens.weight"),
    ("output_norm.weight", "norm.weight"),
    ("output.weight", "lm_head.weight"),
    ("output_hc_fn.weight", "hc_head_fn.weight"),
    ("output_hc_base.weight", "hc_head_base"),
    ("output_hc_scale.weight", "hc_head_scale"),
];

const OWN: &[Pair] = &[
    ("attn_q_a", "self_attn.wq_a"),
    ("attn_q_a_norm", "self_attn.q_norm"),
    ("attn_q_b", "self_attn.wq_b"),
    ("attn_kv", "self_attn.wkv"),
    ("attn_kv_a_norm", "self_attn.kv_norm"),
    ("attn_output_a", "self_attn.wo_a"),
    ("attn_output_b", "self_attn.wo_b"),
    ("attn_sinks.weight", "self_attn.attn_sink"),
    ("attn_compressor_kv", "self_attn.compressor.wkv"),
    ("attn_compressor_gate", "self_attn.compressor.wgate"),
    ("attn_compressor_ape.weight", "self_attn.compressor.ape"),
    ("attn_compressor_norm", "self_attn.compressor.norm"),
    ("indexer_compressor_kv", "self_attn.indexer.compressor.wkv"),
    ("indexer_compressor_gate", "self_attn.indexer.compressor.wgate"),
    ("indexer_compressor_ape.weight", "self_attn.indexer.compressor.ape"),
    ("indexer_compressor_norm", "self_attn.indexer.compressor.norm"),
    ("ffn_gate_tid2eid.weight", "mlp.gate.tid2eid"),
    // Of models that also see.
    ("exp_probs_b_vl.bias", "mlp.gate.bias_vl"),
];

fn config(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    keys.copy(&[
        number("head_dim", "attention.key_length"),
        number("qk_rope_head_dim", "rope.dimension_count"),
        number("q_lora_rank", "attention.q_lora_rank"),
        number("o_groups", "attention.output_group_count"),
        number("o_lora_rank", "attention.output_lora_rank"),
        number("sliding_window", "attention.sliding_window"),
        number_or("num_key_value_heads", "attention.head_count_kv", 1),
        number_or("num_hash_layers", "hash_layer_count", 0),
    ])?;
    ratios(keys)?;
    let (theta, key) = ("compress_rope_theta", "attention.compress_rope_freq_base");
    let base = keys.float(key)?.ok_or_else(|| keys.refuse(key, "be a number"))?;
    keys.put_from(theta, key, json!(base));
    let rope = rope::stretching(keys, Yarn::USUAL)?;
    keys.put("rope_scaling", rope);
    latent::indexer(keys)?;
    mixed_streams::count(keys)?;
    routing::routed(keys, DeepseekKeys::OWN.experts)?;
    routing::shared(keys, DeepseekKeys::OWN.n_shared)?;
    routing::gating(keys, Gating::SqrtSoftplus, None)?;
    keys.put("scoring_func", json!("sqrtsoftplus"));
    routing::normalisation(keys)?;
    routing::scale(keys, DeepseekKeys::OWN.scale)?;
    routing::bound(keys)
}

/// Writes how many positions each layer has in an entry. There may be more than layers: files have those of
/// multi-token prediction even without its weights.
fn ratios(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    let key = "attention.compress_ratios";
    let n_layers = keys.n_layers;
    let all = keys.list(key)?.unwrap_or_default();
    let ratios: Option<Vec<usize>> = all.iter().map(|ratio| usize::try_from(*ratio).ok()).collect();
    let Some(ratios) = ratios.filter(|ratios| ratios.len() >= n_layers) else {
        let rule = format!("be a list of whole numbers, one for each of {n_layers} layers");
        return Err(keys.refuse(key, &rule));
    };
    keys.put_from("compress_ratios", key, json!(ratios));
    Ok(())
}
