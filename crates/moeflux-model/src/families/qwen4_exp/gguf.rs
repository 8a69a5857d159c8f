//! The architecture of GGUF files. Their table of n-grams is one tensor, and the constants of its
//! hash are keys.

use moeflux_core::checkpoint::FormatError;
use moeflux_core::gguf::Architecture;
use moeflux_core::gguf::arch::keys::{Keys, number};
use moeflux_core::gguf::arch::names::{
    EXPERTS, GROUPED, Names, OUTSIDE, Pair, SHARED_EXPERT, TableName,
};
use moeflux_core::gguf::arch::{delta, rope};
use serde_json::json;

pub(super) static ARCHITECTURE: Architecture = Architecture {
    has_sections: true,
    ..Architecture::new(
        "qwen4exp",
        "qwen4_exp_text",
        config,
        Names::apart(&[GROUPED, OWN, EXPERTS, SHARED_EXPERT]).around(AROUND).with_table(TABLE),
    )
};

const TABLE: TableName = TableName {
    stored: "per_layer_token_embd.weight",
    mark: "ple_key.weight",
    part: "ple.ple_embedding.ngram_embedding.weight",
};

const AROUND: &[Pair] = &[
    OUTSIDE[0],
    OUTSIDE[2],
    ("output_hc_norm.weight", "hyper_connection_mixer.hc_norm.weight"),
    ("output_hc_down.weight", "hyper_connection_mixer.input_mix_weight_down.weight"),
    ("output_hc_up.weight", "hyper_connection_mixer.input_mix_weight_up.weight"),
];

const OWN: &[Pair] = &[
    ("hc_attn_norm", "attn_hyper_connection.hc_norm"),
    ("hc_attn_down", "attn_hyper_connection.input_mix_weight_down"),
    ("hc_attn_up", "attn_hyper_connection.input_mix_weight_up"),
    ("hc_attn_inject", "attn_hyper_connection.block_inject_weight"),
    ("hc_ffn_norm", "mlp_hyper_connection.hc_norm"),
    ("hc_ffn_down", "mlp_hyper_connection.input_mix_weight_down"),
    ("hc_ffn_up", "mlp_hyper_connection.input_mix_weight_up"),
    ("hc_ffn_inject", "mlp_hyper_connection.block_inject_weight"),
    ("ple_key", "ple.key_proj"),
    ("ple_value", "ple.value_proj"),
    ("ple_conv1d", "ple.conv1d"),
    ("ple_norm_key", "ple.norm_key"),
    ("ple_norm_query", "ple.norm_query"),
    ("ple_norm_conv", "ple.norm_conv"),
    ("indexer.q_proj", "self_attn.indexer.q_proj"),
    ("indexer.k_proj", "self_attn.indexer.k_proj"),
    ("indexer.q_norm", "self_attn.indexer.q_layernorm"),
    ("indexer.k_norm", "self_attn.indexer.k_layernorm"),
];

/// Files do not say through what gates of delta nets go, nor that the weights of experts add up to 1.
fn config(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    let head_dim = delta::hybrid(keys)?;
    keys.put("linear_value_head_order", json!("tiled"));
    keys.put("output_gate_type", json!("sigmoid"));
    keys.put("norm_topk_prob", json!(true));
    rope::check_sections(keys, head_dim)?;
    rope::three_sections(keys)?;
    keys.copy(&[
        number("hc_count", "hyper_connection.count"),
        number("hc_lowrank", "hyper_connection.low_rank"),
        number("indexer_n_heads", "attention.indexer.head_count"),
        number("indexer_head_dim", "attention.indexer.key_length"),
        number("indexer_budget", "attention.indexer.top_k"),
    ])?;
    keys.put("indexer_kv_heads", json!(1));
    pools(keys)?;
    ngrams(keys)
}

const RATIOS: &str = "attention.compress_ratios";

/// Writes how many positions the pools of indexers have. Some converters wrote zeros, with which other
/// positions would be seen.
fn pools(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    let all = keys.numbers(RATIOS)?;
    let all = all.ok_or_else(|| keys.refuse(RATIOS, "be a list with an entry for each layer"))?;
    let layers = keys.layers_with("indexer.q_norm.weight");
    let ratios: Vec<usize> = layers.iter().map(|layer| all[*layer]).collect();
    if let Some(layer) = layers.iter().find(|layer| all[**layer] == 0) {
        let rule = format!(
            "have no 0 for blk.{layer}, which has an indexer: convert the model again, with the \
             layer_types of its config.json"
        );
        return Err(keys.refuse(RATIOS, &rule));
    }
    let Some(first) = ratios.first() else { return Ok(()) };
    if ratios.iter().any(|ratio| ratio != first) {
        return Err(keys.refuse(RATIOS, "have one number for all layers with an indexer"));
    }
    keys.put_from("indexer_compress_ratio", RATIOS, json!(first));
    Ok(())
}

/// Writes what n-grams are hashed with, and the shape of their table.
fn ngrams(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    let layers = whole(keys, "ple.layers")?;
    let Some(layers) = layers.filter(|layers| !layers.is_empty()) else { return Ok(()) };
    let one_based: Vec<u64> = layers.iter().map(|layer| layer.saturating_add(1)).collect();
    keys.put_from("ple_layer_ids", "ple.layers", json!(one_based));
    keys.copy(&[
        number("ngram_size", "ple.ngram_size"),
        number("heads_per_ngram", "ple.heads_per_ngram"),
        number("ple_conv_kernel_size", "ple.conv_kernel"),
        number("eos_token_id", "ple.eos_token_id"),
    ])?;
    for (to, from) in [
        ("ple_layer_multipliers", "ple.layer_multipliers"),
        ("ple_head_vocab_sizes", "ple.head_vocab_sizes"),
        ("ple_head_offsets", "ple.head_offsets"),
    ] {
        let all = whole(keys, from)?;
        let all = all.ok_or_else(|| keys.refuse(from, "be a list of whole numbers"))?;
        keys.put_from(to, from, json!(all));
    }
    let width = "embedding_length_per_layer_input";
    let n_rows = keys.required("ple.ngram_size")?.saturating_sub(1);
    let n_rows = n_rows.saturating_mul(keys.required("ple.heads_per_ngram")?);
    let all = keys.required(width)?.saturating_mul(n_rows);
    keys.put_from("ple_embed_dim", width, json!(all));
    let rows = keys.rows_of(TABLE.stored)?;
    keys.put("ple_table_rows", json!(rows));
    Ok(())
}

/// More than the heads of all n-grams, and than layers.
const MAX_NUMBERS: usize = 1024;

/// A list of whole numbers.
fn whole(keys: &Keys<'_>, key: &str) -> Result<Option<Vec<u64>>, FormatError> {
    let Some(all) = keys.list(key)? else { return Ok(None) };
    if all.len() > MAX_NUMBERS {
        return Err(keys.refuse(key, &format!("have at most {MAX_NUMBERS} entries")));
    }
    let all: Option<Vec<u64>> = all.iter().map(|number| u64::try_from(*number).ok()).collect();
    all.map(Some).ok_or_else(|| keys.refuse(key, "hold whole numbers of at least 0"))
}
