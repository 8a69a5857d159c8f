//! GGUF files of the architecture that its successors have, too: those whose experts probabilities
//! choose.

use moeflux_core::checkpoint::FormatError;
use moeflux_core::gguf::Architecture;
use moeflux_core::gguf::arch::keys::Keys;
use moeflux_core::gguf::arch::names::{EXPERTS, LATENT, Names, SHARED_EXPERTS};
use moeflux_core::gguf::arch::routing::Gating;
use moeflux_core::gguf::arch::{latent, routing};
use serde_json::json;

pub(super) static ARCHITECTURE: Architecture = Architecture {
    is_meant: Some(is_meant),
    ..Architecture::new(
        "deepseek2",
        "deepseek_v2",
        config,
        Names::new(&[LATENT, EXPERTS, SHARED_EXPERTS]),
    )
};

/// Files before 2025 do not say how experts are chosen.
fn is_meant(keys: &Keys<'_>) -> Result<bool, FormatError> {
    let gating = match routing::given_gating(keys)? {
        Some(given) => given,
        None => latent::default_gating(keys)? as usize,
    };
    Ok(gating == Gating::Softmax as usize)
}

/// The experts of the 236 billion, and their groups, of which older files say nothing.
const LARGE_EXPERTS: usize = 160;
const LARGE_GROUPS: [usize; 2] = [8, 3];

const GROUPS: [&str; 2] = ["expert_group_count", "expert_group_used_count"];

fn config(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    latent::attention(keys)?;
    routing::deepseek(keys)?;
    if GROUPS.iter().all(|key| !keys.holds(key))
        && keys.number("expert_count")? == Some(LARGE_EXPERTS)
    {
        keys.put("n_group", json!(LARGE_GROUPS[0]));
        keys.put("topk_group", json!(LARGE_GROUPS[1]));
    }
    let is_grouped = keys.written("n_group").is_some_and(|n| *n != 1);
    let method = if is_grouped { "group_limited_greedy" } else { "greedy" };
    keys.put("topk_method", json!(method));
    Ok(())
}
