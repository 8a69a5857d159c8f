//! Merges of a vocabulary that says in what order tokens come, but not of what pairs.

use std::collections::HashMap;

use serde_json::{Value, json};

/// Merges of one vocabulary; published ones have up to half a million.
pub(super) const MAX_MERGES: usize = 1 << 22;
/// The sum of the squared lengths of all tokens in bytes, which is about what looking for pairs
/// takes. Published vocabularies have 20 million.
const MAX_WORK: u64 = 1 << 28;

/// The pairs of tokens that make another token. Like tiktoken and sentencepiece, a tokenizer with
/// these merges joins the pair that makes the best token, whatever the two halves are.
///
/// `best_first` are the tokens that are made of others, the best first; `parts` those that they
/// are made of, with their ids.
///
/// # Errors
/// What is too much of it.
pub(super) fn merges(
    best_first: &[&str],
    parts: &HashMap<&str, u32>,
) -> Result<Vec<Value>, &'static str> {
    let work: u64 = best_first.iter().map(|token| (token.len() as u64).pow(2)).sum();
    if work > MAX_WORK {
        return Err("its tokens are too long all together");
    }
    let mut merges = Vec::new();
    let mut pairs = Vec::new();
    for token in best_first {
        pairs.clear();
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if let (Some(left_id), Some(right_id)) = (parts.get(left), parts.get(right)) {
                pairs.push((*left_id, *right_id, left, right));
            }
        }
        pairs.sort_unstable();
        merges.extend(pairs.iter().map(|(_, _, left, right)| json!([left, right])));
        if merges.len() > MAX_MERGES {
            return Err("its tokens have more than 4194304 merges");
        }
    }
    Ok(merges)
}
