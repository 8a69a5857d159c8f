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
}

impl Settings {
    /// What the model's makers advise, else greedy; a seed of its own.
    pub(crate) fn of(app: &Model) -> Settings {
        let advised = SamplerOptions::recommended(app.text.tokenizer().generation_defaults());
        let sampler = SamplerOptions { seed: app.ids.seed(), ..advised };
        Settings {
            n: 1,
            max_tokens: None,
            stop: Vec::new(),
            sampler,
            bias: Bias::default(),
            top_logprobs: None,
        }
    }
}
