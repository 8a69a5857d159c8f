//! How answers are made.

use moeflux::{Bias, Sampling};

use crate::model::Model;

/// How answers are made.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Answers.
    pub(crate) n: usize,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) stop: Vec<String>,
    pub(crate) sampler: Sampling,
    /// Whether the request says how freely tokens are drawn.
    pub(crate) names_temperature: bool,
    pub(crate) bias: Bias,
    pub(crate) top_logprobs: Option<usize>,
}

impl Settings {
    /// What the model's makers advise, else what is usual; a seed of its own.
    pub(crate) fn of(app: &Model) -> Settings {
        let advised = Sampling::recommended(app.text.tokenizer().generation_defaults());
        let sampler = Sampling { seed: app.ids.seed(), ..advised };
        Settings {
            n: 1,
            max_tokens: None,
            stop: Vec::new(),
            sampler,
            names_temperature: false,
            bias: Bias::default(),
            top_logprobs: None,
        }
    }

    /// How answer `i` to a prompt is made, of at most `most` tokens.
    pub(crate) fn of_answer(&self, i: usize, most: Option<usize>) -> moeflux::Settings {
        moeflux::Settings {
            max_tokens: [self.max_tokens, most].into_iter().flatten().min(),
            stop: self.stop.clone(),
            sampling: self.sampler.of_answer(i as u64),
            bias: self.bias.clone(),
            top_logprobs: self.top_logprobs,
        }
    }
}
