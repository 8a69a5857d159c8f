//! Routed and shared experts: how many, how wide, and how they are chosen.

use serde_json::json;

use super::keys::{Keys, number_or};
use crate::checkpoint::FormatError;

/// How scores become weights of experts, by the numbers in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gating {
    /// Softmax over all experts.
    Softmax = 1,
    /// A sigmoid of each score.
    Sigmoid = 2,
    /// Softmax over the chosen experts.
    SoftmaxOfChosen = 3,
}

/// The names that a family's config has for its experts.
#[derive(Clone, Copy)]
pub struct ExpertKeys {
    /// The key of their number.
    pub count: &'static str,
    /// The key of the columns between an expert's products.
    pub intermediate: &'static str,
}

const GATING: &str = "expert_gating_func";
const SCALE: &str = "expert_weights_scale";
const OWN_LEN: &str = "expert_feed_forward_length";
const DENSE_LEN: &str = "feed_forward_length";

/// Writes the number of experts and their width.
pub fn routed(keys: &mut Keys<'_>, names: ExpertKeys) -> Result<(), FormatError> {
    let count = keys.number("expert_count")?.filter(|count| *count > 0);
    let rule = "be at least 1: models without experts are not run";
    let count = count.ok_or_else(|| keys.refuse("expert_count", rule))?;
    keys.put_from(names.count, "expert_count", json!(count));
    // Older files have the width of experts under the key of dense layers.
    let len_key = if keys.holds(OWN_LEN) { OWN_LEN } else { DENSE_LEN };
    let len = keys.required(len_key)?;
    keys.put_from(names.intermediate, len_key, json!(len));
    Ok(())
}

/// Checks how experts are chosen. `absent` is what files without the key mean.
pub fn gating(keys: &Keys<'_>, want: Gating, absent: Option<Gating>) -> Result<(), FormatError> {
    let given = keys.number(GATING)?.filter(|number| *number != 0);
    let is_wanted = match given {
        Some(number) => number == want as usize,
        None => absent == Some(want),
    };
    if is_wanted {
        return Ok(());
    }
    let name = match want {
        Gating::Softmax => "softmax",
        Gating::Sigmoid => "sigmoid",
        Gating::SoftmaxOfChosen => "softmax over the chosen",
    };
    let meaning = match (given, absent) {
        (None, Some(Gating::Softmax)) => "; without it the routing is by softmax",
        _ => "",
    };
    Err(keys.refuse(GATING, &format!("be {} ({name}){meaning}", want as usize)))
}

/// Refuses a factor of the weights of experts other than 1.
pub fn unscaled(keys: &Keys<'_>) -> Result<(), FormatError> {
    match keys.float(SCALE)? {
        None | Some(0.0 | 1.0) => Ok(()),
        Some(_) => Err(keys.refuse(SCALE, "be 1 for this architecture")),
    }
}

/// DeepSeek-V3's: leading dense layers, shared experts, groups, a factor of the weights.
pub fn deepseek(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    let names = ExpertKeys { count: "n_routed_experts", intermediate: "moe_intermediate_size" };
    routed(keys, names)?;
    keys.copy(&[number_or("first_k_dense_replace", "leading_dense_block_count", 0)])?;
    for (to, from) in [("n_group", "expert_group_count"), ("topk_group", "expert_group_used_count")]
    {
        let n = keys.number(from)?.unwrap_or(0).max(1);
        keys.put_from(to, from, json!(n));
    }
    // No factor would leave routed experts without effect.
    let scale = keys.float(SCALE)?.filter(|scale| *scale != 0.0).unwrap_or(1.0);
    keys.put_from("routed_scaling_factor", SCALE, json!(scale));
    let normalises = keys.bool("expert_weights_norm")?.unwrap_or(false);
    keys.put("norm_topk_prob", json!(normalises));
    if let Some(len) = keys.number(DENSE_LEN)? {
        keys.put_from("intermediate_size", DENSE_LEN, json!(len));
    }
    shared(keys)
}

/// Shared experts: their number, or the width of all together.
fn shared(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    let (count_key, len_key) = ("expert_shared_count", "expert_shared_feed_forward_length");
    let count = keys.number(count_key)?.unwrap_or(0);
    let own_len = keys.number(OWN_LEN)?.unwrap_or(0);
    let count = match keys.number(len_key)?.filter(|len| *len > 0) {
        Some(len) if own_len == 0 || !len.is_multiple_of(own_len) => {
            let rule = format!("be a multiple of {}, which is {own_len}", keys.key(OWN_LEN));
            return Err(keys.refuse(len_key, &rule));
        }
        Some(len) => len / own_len,
        None => count,
    };
    keys.put_from("n_shared_experts", count_key, json!(count));
    Ok(())
}
