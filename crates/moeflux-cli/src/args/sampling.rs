//! How tokens are chosen.

use clap::Args;
use moeflux_engine::sampler::SamplerOptions;
use moeflux_engine::text::GenerationDefaults;

use crate::values::{count, non_negative, penalty, positive_share, probability};

/// How tokens are chosen. What is left out is as the model's authors advise in
/// `generation_config.json`, else greedy.
#[derive(Clone, Debug, Args)]
pub(crate) struct SampleArgs {
    /// Divides the logits; 0 always takes the likeliest token
    #[arg(long, value_name = "T", value_parser = non_negative, allow_negative_numbers = true)]
    temperature: Option<f32>,
    /// Keep the fewest tokens whose probabilities reach this sum
    #[arg(long, value_name = "P", value_parser = positive_share, allow_negative_numbers = true)]
    top_p: Option<f32>,
    /// Keep this many of the likeliest tokens; 0 keeps all
    #[arg(long, value_name = "K", allow_negative_numbers = true)]
    top_k: Option<usize>,
    /// Drop tokens below this share of the likeliest one's probability
    #[arg(long, value_name = "P", value_parser = probability, allow_negative_numbers = true)]
    min_p: Option<f32>,
    /// Make tokens that were used less likely; 1 changes nothing
    #[arg(long, value_name = "R", value_parser = penalty, allow_negative_numbers = true)]
    repeat_penalty: Option<f32>,
    /// Determines all random choices [default: another one each time]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    seed: Option<u64>,
    /// Tokens of an answer at most
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = count, allow_negative_numbers = true)]
    pub(crate) max_tokens: usize,
    /// End the answer before this text; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
}

impl SampleArgs {
    /// The sampler's options, completed by what the model advises.
    pub(crate) fn sampler(&self, advised: &GenerationDefaults) -> SamplerOptions {
        let samples = advised.do_sample.unwrap_or(false);
        let default_temperature = if samples { advised.temperature.unwrap_or(1.0) } else { 0.0 };
        let plain = SamplerOptions::default();
        SamplerOptions {
            temperature: self.temperature.unwrap_or(default_temperature),
            top_k: self.top_k.or(advised.top_k).unwrap_or(plain.top_k),
            top_p: self.top_p.or(advised.top_p).unwrap_or(plain.top_p),
            min_p: self.min_p.or(advised.min_p).unwrap_or(plain.min_p),
            repeat_penalty: self
                .repeat_penalty
                .or(advised.repetition_penalty)
                .unwrap_or(plain.repeat_penalty),
            repeat_window: plain.repeat_window,
            seed: self.seed.unwrap_or_else(seed_of_now),
        }
    }
}

fn seed_of_now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |it| it.as_nanos() as u64)
}
