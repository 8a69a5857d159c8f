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
    /// The root of a softplus of each score.
    SqrtSoftplus = 4,
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
const NORMALISES: &str = "expert_weights_norm";
const OWN_LEN: &str = "expert_feed_forward_length";
const SHARED_COUNT: &str = "expert_shared_count";
const SHARED_LEN: &str = "expert_shared_feed_forward_length";
const DENSE_LEN: &str = "feed_forward_length";

/// Writes the number of experts and their width.
pub fn routed(keys: &mut Keys<'_>, names: ExpertKeys) -> Result<(), FormatError> {
    count(keys, names.count)?;
    // Older files have the width of experts under the key of dense layers.
    let len_key = if keys.holds(OWN_LEN) { OWN_LEN } else { DENSE_LEN };
    let len = keys.required(len_key)?;
    keys.put_from(names.intermediate, len_key, json!(len));
    Ok(())
}

fn count(keys: &mut Keys<'_>, name: &str) -> Result<(), FormatError> {
    let count = keys.number("expert_count")?.filter(|count| *count > 0);
    let rule = "be at least 1: models without experts are not run";
    let count = count.ok_or_else(|| keys.refuse("expert_count", rule))?;
    keys.put_from(name, "expert_count", json!(count));
    Ok(())
}

/// Writes the number of experts, their width and that of a shared one. Tensors show what older files
/// do not say.
pub fn routed_by_tensors(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    count(keys, "num_experts")?;
    for (to, from, tensor) in [
        ("moe_intermediate_size", OWN_LEN, "ffn_down_exps.weight"),
        ("shared_expert_intermediate_size", SHARED_LEN, "ffn_down_shexp.weight"),
    ] {
        let len = keys.number(from)?.filter(|len| *len > 0).or(keys.cols_of_first(tensor));
        let len = len.ok_or_else(|| keys.refuse(from, "be a whole number"))?;
        keys.put_from(to, from, json!(len));
    }
    Ok(())
}

/// The number that a file has for how experts are chosen.
pub fn given_gating(keys: &Keys<'_>) -> Result<Option<usize>, FormatError> {
    Ok(keys.number(GATING)?.filter(|number| *number != 0))
}

/// Checks how experts are chosen. `absent` is what files without the key mean.
pub fn gating(keys: &Keys<'_>, want: Gating, absent: Option<Gating>) -> Result<(), FormatError> {
    let given = given_gating(keys)?;
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
        Gating::SqrtSoftplus => "the root of softplus",
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

/// The names that a family's config has for what DeepSeek-V3's routing adds.
#[derive(Clone, Copy)]
pub struct DeepseekKeys {
    /// Those of routed experts.
    pub experts: ExpertKeys,
    /// The key of the number of shared experts.
    pub n_shared: &'static str,
    /// The key of the factor of the weights.
    pub scale: &'static str,
}

impl DeepseekKeys {
    /// DeepSeek's own.
    pub const OWN: DeepseekKeys = DeepseekKeys {
        experts: ExpertKeys { count: "n_routed_experts", intermediate: "moe_intermediate_size" },
        n_shared: "n_shared_experts",
        scale: "routed_scaling_factor",
    };

    /// Those of configs that count experts as most do.
    pub const USUAL: DeepseekKeys = DeepseekKeys {
        experts: ExpertKeys { count: "num_experts", intermediate: "moe_intermediate_size" },
        n_shared: "num_shared_experts",
        ..DeepseekKeys::OWN
    };
}

/// DeepSeek-V3's: leading dense layers, shared experts, groups, a factor of the weights.
pub fn deepseek(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    deepseek_named(keys, DeepseekKeys::OWN)
}

/// The same under the names of a family.
pub fn deepseek_named(keys: &mut Keys<'_>, names: DeepseekKeys) -> Result<(), FormatError> {
    routed(keys, names.experts)?;
    keys.copy(&[number_or("first_k_dense_replace", "leading_dense_block_count", 0)])?;
    for (to, from) in [("n_group", "expert_group_count"), ("topk_group", "expert_group_used_count")]
    {
        let n = keys.number(from)?.unwrap_or(0).max(1);
        keys.put_from(to, from, json!(n));
    }
    scale(keys, names.scale)?;
    normalisation(keys)?;
    dense_len(keys)?;
    shared(keys, names.n_shared)
}

/// Writes the factor of the weights of experts.
pub fn scale(keys: &mut Keys<'_>, name: &str) -> Result<(), FormatError> {
    // No factor would leave routed experts without effect.
    let scale = keys.float(SCALE)?.filter(|scale| *scale != 0.0).unwrap_or(1.0);
    keys.put_from(name, SCALE, json!(scale));
    Ok(())
}

/// Writes the width of dense layers, where files say it.
pub fn dense_len(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    if let Some(len) = keys.number(DENSE_LEN)? {
        keys.put_from("intermediate_size", DENSE_LEN, json!(len));
    }
    Ok(())
}

/// Writes whether the weights of experts are divided by their sum.
pub fn normalisation(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    let normalises = keys.bool(NORMALISES)?.unwrap_or(false);
    keys.put_from("norm_topk_prob", NORMALISES, json!(normalises));
    Ok(())
}

/// Refuses files whose experts' weights do not add up to 1, which they do where nothing says it.
pub fn normalised(keys: &Keys<'_>) -> Result<(), FormatError> {
    match keys.bool(NORMALISES)? {
        Some(true) => Ok(()),
        _ => Err(keys.refuse(NORMALISES, "be true for this architecture")),
    }
}

/// Writes the bound of gates and ups, of which files have one for each layer: all must be the same.
pub fn bound(keys: &mut Keys<'_>) -> Result<(), FormatError> {
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

/// Writes which layers are dense and which have experts, by their tensors.
pub fn layers_by_tensors(keys: &mut Keys<'_>) {
    let dense = keys.layers_with("ffn_gate.weight");
    let kind = |layer: usize| if dense.contains(&layer) { "dense" } else { "sparse" };
    let kinds: Vec<&str> = (0..keys.n_layers).map(kind).collect();
    keys.put("mlp_layer_types", json!(kinds));
}

/// Shared experts: their number, or the width of all together.
pub fn shared(keys: &mut Keys<'_>, name: &str) -> Result<(), FormatError> {
    let count = keys.number(SHARED_COUNT)?.unwrap_or(0);
    let count = match keys.number(SHARED_LEN)?.filter(|len| *len > 0) {
        Some(len) => experts_of(keys, len)?,
        None => count,
    };
    keys.put_from(name, SHARED_COUNT, json!(count));
    Ok(())
}

/// How many experts are as wide as `len` columns.
fn experts_of(keys: &Keys<'_>, len: usize) -> Result<usize, FormatError> {
    let own_len = keys.number(OWN_LEN)?.unwrap_or(0);
    if own_len == 0 || !len.is_multiple_of(own_len) {
        let rule = format!("be a multiple of {}, which is {own_len}", keys.key(OWN_LEN));
        return Err(keys.refuse(SHARED_LEN, &rule));
    }
    Ok(len / own_len)
}

/// Shared experts by their tensors, for architectures whose converter writes another width.
pub fn shared_by_tensors(keys: &mut Keys<'_>, name: &str) -> Result<(), FormatError> {
    let count = match keys.cols_of_first("ffn_down_shexp.weight") {
        Some(len) => {
            let own_len = keys.required(OWN_LEN)?;
            if own_len == 0 || !len.is_multiple_of(own_len) {
                let rule = format!("divide the {len} columns of shared experts");
                return Err(keys.refuse(OWN_LEN, &rule));
            }
            len / own_len
        }
        None => keys.number(SHARED_COUNT)?.unwrap_or(0),
    };
    keys.put_from(name, SHARED_COUNT, json!(count));
    Ok(())
}
