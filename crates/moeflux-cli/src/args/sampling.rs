//! How tokens are chosen.

use clap::Args;
use moeflux_engine::sampler::SamplerOptions;
use moeflux_text::GenerationDefaults;

use crate::values::{
    count, non_negative, penalty, positive_share, probability, seed, whole_number,
};

/// How tokens are chosen. Flags that are left out take the values of the model's
/// `generation_config.json`, and where it names none those of llama.cpp.
#[derive(Clone, Debug, Args)]
pub(crate) struct SampleArgs {
    /// 0 is greedy [default: the model's, else 0.8]
    #[arg(long, value_name = "T", value_parser = non_negative, allow_negative_numbers = true, help_heading = SAMPLING)]
    #[arg(alias = "temp")]
    pub(crate) temperature: Option<f32>,
    /// Nucleus sampling [default: the model's, else 0.95]
    #[arg(long, value_name = "P", value_parser = positive_share, allow_negative_numbers = true, help_heading = SAMPLING)]
    pub(crate) top_p: Option<f32>,
    /// Likeliest tokens kept [default: the model's, or 40]
    #[arg(long, value_name = "K", value_parser = whole_number, allow_negative_numbers = true, help_heading = SAMPLING)]
    pub(crate) top_k: Option<usize>,
    /// Relative cut-off [default: the model's, else 0.05]
    #[arg(long, value_name = "P", value_parser = probability, allow_negative_numbers = true, help_heading = SAMPLING)]
    pub(crate) min_p: Option<f32>,
    /// 1 is off [default: the model's, else 1]
    #[arg(long, value_name = "R", value_parser = penalty, allow_negative_numbers = true, help_heading = SAMPLING)]
    #[arg(alias = "repetition-penalty")]
    pub(crate) repeat_penalty: Option<f32>,
    /// Random seed [default: from the clock]
    #[arg(long, value_name = "N", value_parser = seed, allow_negative_numbers = true, help_heading = SAMPLING)]
    pub(crate) seed: Option<u64>,
    /// Longest answer, in tokens [default: the context]
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true, help_heading = SAMPLING)]
    #[arg(aliases = ["n-predict", "max-new-tokens", "num-predict"])]
    pub(crate) max_tokens: Option<usize>,
    /// Most tokens of thoughts, 0 for none
    #[arg(long, value_name = "N", value_parser = whole_number, allow_negative_numbers = true, help_heading = SAMPLING)]
    pub(crate) thinking_budget: Option<usize>,
    /// Stop before this text; may be repeated
    #[arg(long, value_name = "TEXT", help_heading = SAMPLING)]
    pub(crate) stop: Vec<String>,
}

const SAMPLING: &str = "Sampling";

impl SampleArgs {
    /// The sampler's options: flags first, then the model's `generation_config.json`.
    pub(crate) fn sampler(&self, advised: &GenerationDefaults) -> SamplerOptions {
        let advised = SamplerOptions::recommended(advised);
        SamplerOptions {
            temperature: self.temperature.unwrap_or(advised.temperature),
            top_k: self.top_k.unwrap_or(advised.top_k),
            top_p: self.top_p.unwrap_or(advised.top_p),
            min_p: self.min_p.unwrap_or(advised.min_p),
            repeat_penalty: self.repeat_penalty.unwrap_or(advised.repeat_penalty),
            seed: self.seed.unwrap_or_else(seed_of_now),
            ..advised
        }
    }
}

/// A seed from the clock.
pub(crate) fn seed_of_now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |since| since.as_nanos() as u64)
}
