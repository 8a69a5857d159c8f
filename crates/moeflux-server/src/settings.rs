//! How answers are made.

use moeflux_engine::Bias;
use moeflux_engine::sampler::SamplerOptions;

use crate::model::Model;

/// How answers are made.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Answers.
    pub(crate) n: usize,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) stop: Vec<String>,
    pub(crate) sampler: SamplerOptions,
    pub(crate) bias: Bias,
    pub(crate) top_logprobs: Option<usize>,
    /// What the client expects answers to hold much of.
    pub(crate) prediction: Option<String>,
}

impl Settings {
    /// What the model's makers advise, else greedy; a seed of its own.
    pub(crate) fn of(app: &Model) -> Settings {
        let advised = app.tokenizer.generation_defaults();
        let samples = advised.do_sample.unwrap_or(false);
        let plain = SamplerOptions::default();
        let sampler = SamplerOptions {
            temperature: if samples { advised.temperature.unwrap_or(1.0) } else { 0.0 },
            top_k: advised.top_k.unwrap_or(plain.top_k),
            top_p: advised.top_p.unwrap_or(plain.top_p),
            min_p: advised.min_p.unwrap_or(plain.min_p),
            repeat_penalty: advised.repetition_penalty.unwrap_or(plain.repeat_penalty),
            repeat_window: plain.repeat_window,
            seed: app.ids.seed(),
        };
        Settings {
            n: 1,
            max_tokens: None,
            stop: Vec::new(),
            sampler,
            bias: Bias::default(),
            top_logprobs: None,
            prediction: None,
        }
    }
}
