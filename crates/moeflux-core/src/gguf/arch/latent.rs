//! What architectures with multi-head latent attention share.

use serde_json::{Value, json};

use super::keys::{Keys, number};
use super::rope::{self, Yarn};
use super::routing::{self, Gating};
use crate::checkpoint::FormatError;

/// Writes how an indexer chooses positions.
pub fn indexer(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    keys.copy(&[
        number("index_n_heads", "attention.indexer.head_count"),
        number("index_head_dim", "attention.indexer.key_length"),
        number("index_topk", "attention.indexer.top_k"),
    ])
}

/// GLM-4.7-Flash, whose first files do not say that its routing is by sigmoid: its numbers of
/// layers, with that for multi-token prediction and without, and of tokens.
const FLASH_BLOCKS: [usize; 2] = [47, 48];
const FLASH_VOCAB: usize = 154_880;

/// How experts are chosen in files of DeepSeek's layers that do not say it.
pub fn default_gating(keys: &Keys<'_>) -> Result<Gating, FormatError> {
    let vocab = keys.number("vocab_size")?.map_or_else(|| keys.vocab(), Ok)?;
    let is_flash = FLASH_BLOCKS.contains(&keys.n_blocks) && vocab == FLASH_VOCAB;
    Ok(if is_flash { Gating::Sigmoid } else { Gating::Softmax })
}

/// Writes attention and routing by sigmoids. `absent` is the gating of files that do not say it.
pub fn latent(keys: &mut Keys<'_>, absent: Gating) -> Result<(), FormatError> {
    attention(keys)?;
    routing::deepseek(keys)?;
    routing::gating(keys, Gating::Sigmoid, Some(absent))
}

/// Writes attention alone.
pub fn attention(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    heads(keys)?;
    keys.put("attention_bias", json!(keys.any_has("attn_q_a.bias")));
    rope::scaling(keys, Yarn { scales_scores: true, ..Yarn::USUAL })
}

/// Heads and ranks. The first files have the columns of a head where newer ones have those of what
/// is cached.
fn heads(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    let n_heads = keys.required("attention.head_count")?;
    // The file's number of key heads says which of two layouts it has.
    keys.put_from("num_key_value_heads", "attention.head_count", json!(n_heads));
    keys.copy(&[
        number("kv_lora_rank", "attention.kv_lora_rank"),
        number("qk_rope_head_dim", "rope.dimension_count"),
    ])?;
    let q_rank = "attention.q_lora_rank";
    let is_direct = keys.any_has("attn_q.weight");
    let rank = keys.number(q_rank)?.filter(|rank| *rank > 0 && !is_direct);
    keys.put_from("q_lora_rank", q_rank, rank.map_or(Value::Null, |rank| json!(rank)));
    let is_new = keys.holds("attention.key_length_mla");
    let [key, value] = if is_new {
        ["attention.key_length_mla", "attention.value_length_mla"]
    } else {
        ["attention.key_length", "attention.value_length"]
    };
    let v_dim = keys.required(value)?;
    keys.put_from("v_head_dim", value, json!(v_dim));
    let (key_dim, rope_dim) = (keys.required(key)?, keys.required("rope.dimension_count")?);
    let Some(nope_dim) = key_dim.checked_sub(rope_dim).filter(|dim| *dim > 0) else {
        let rule = format!("be above {}, which is {rope_dim}", keys.key("rope.dimension_count"));
        return Err(keys.refuse(key, &rule));
    };
    keys.put("qk_nope_head_dim", json!(nope_dim));
    Ok(())
}
