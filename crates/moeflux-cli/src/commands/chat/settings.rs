//! `/set`: how answers are sampled and how much is thought, changed within a conversation.

use anyhow::{Result, bail};
use moeflux::Settings;

use crate::values::{
    count, non_negative, penalty, positive_share, probability, seed, thought_limit, whole_number,
};
use crate::words::did_you_mean;

pub(super) const NAMES: [&str; 8] = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repeat_penalty",
    "seed",
    "max_tokens",
    "thinking_budget",
];

/// Carries out `/set NAME VALUE`; returns what to print. Values are checked as those of flags.
///
/// # Errors
/// Where there is no such setting or no such value.
pub(super) fn set(
    options: &mut Settings,
    thinking_budget: &mut Option<usize>,
    argument: &str,
) -> Result<String> {
    let mut words = argument.split([' ', '=']).filter(|word| !word.is_empty());
    let (name, value, rest) = (words.next(), words.next(), words.next());
    let Some(name) = name else { return Ok(all(options, *thinking_budget)) };
    let name = name.trim_start_matches('-').replace('-', "_");
    let (Some(value), None) = (value, rest) else {
        bail!("write /set NAME VALUE, such as /set temperature 0.7; /set alone shows all");
    };
    let sampler = &mut options.sampling;
    let done = match name.as_str() {
        "temperature" => non_negative(value).map(|value| sampler.temperature = value),
        "top_p" => positive_share(value).map(|share| sampler.top_p = share),
        "top_k" => whole_number(value).map(|n| sampler.top_k = n),
        "min_p" => probability(value).map(|value| sampler.min_p = value),
        "repeat_penalty" => penalty(value).map(|value| sampler.repeat_penalty = value),
        "seed" => seed(value).map(|seed| sampler.seed = seed),
        "max_tokens" => count(value).map(|n| options.max_tokens = Some(n)),
        "thinking_budget" => thought_limit(value).map(|most| *thinking_budget = most),
        other => match did_you_mean(other, NAMES.into_iter()) {
            Some(near) => bail!("/set {other}: did you mean {near}?"),
            None => bail!("/set {other}: there are {}", NAMES.join(", ")),
        },
    };
    match done {
        Ok(()) => Ok(format!("{name} = {value}")),
        Err(remedy) => bail!("/set {name} '{value}': {remedy}"),
    }
}

fn all(options: &Settings, thinking_budget: Option<usize>) -> String {
    let sampler = &options.sampling;
    format!(
        "temperature = {}\ntop_p = {}\ntop_k = {}\nmin_p = {}\nrepeat_penalty = {}\nseed = {}\n\
         max_tokens = {}\nthinking_budget = {}",
        sampler.temperature,
        sampler.top_p,
        sampler.top_k,
        sampler.min_p,
        sampler.repeat_penalty,
        sampler.seed,
        options.max_tokens.map_or_else(|| String::from("the context"), |n| n.to_string()),
        thinking_budget.map_or_else(|| String::from("no limit"), |n| n.to_string())
    )
}
