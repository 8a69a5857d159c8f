//! The fields that say how an answer is made.

use moeflux_engine::{Bias, Finish, TokenId};
use serde_json::{Map, Value};

use crate::error::{ApiError, ApiResult};
use crate::model::Model;
use crate::request::{Integer, Limit, List, Number, Seed, StringOr};
use crate::settings::Settings;

/// Answers to one prompt at most.
pub(crate) const MAX_N: u64 = 16;

/// Stop texts at most.
pub(crate) const MAX_STOPS: usize = 16;

/// Biased tokens at most.
const MAX_BIASED: usize = 1024;

/// Most alternatives with their log probabilities for each token of the answer.
pub(crate) const MAX_TOP: u64 = 20;

/// How freely tokens are drawn; 0 takes the likeliest.
pub(crate) type Temperature = Number<0, 2>;
/// A probability.
pub(crate) type Share = Number<0, 1>;
/// What is taken from the logits of tokens that the answer has.
pub(crate) type Penalty = Number<-2, 2>;
/// What logits of tokens that were there are divided by.
pub(crate) type RepeatPenalty = Number<1, 1000, 100>;
/// Texts that end an answer.
pub(crate) type Stops = StringOr<List<String, MAX_STOPS>>;

/// What chat and completions have in common.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sampling {
    pub(crate) temperature: Option<Temperature>,
    pub(crate) top_p: Option<Share>,
    pub(crate) top_k: Option<Limit<0>>,
    pub(crate) min_p: Option<Share>,
    pub(crate) n: Option<Integer<1, MAX_N>>,
    pub(crate) stop: Option<Stops>,
    pub(crate) frequency_penalty: Option<Penalty>,
    pub(crate) presence_penalty: Option<Penalty>,
    pub(crate) repetition_penalty: Option<RepeatPenalty>,
    pub(crate) repeat_last_n: Option<Limit<0>>,
    pub(crate) logit_bias: Option<Map<String, Value>>,
    pub(crate) seed: Option<Seed>,
    pub(crate) ignore_eos: Option<bool>,
}

impl Sampling {
    /// The settings of a request.
    pub(crate) fn settings(self, model: &Model) -> ApiResult<Settings> {
        let mut settings = Settings::of(model);
        if let Some(Integer(n)) = self.n {
            settings.n = n;
        }
        settings.stop = texts(self.stop);
        let sampler = &mut settings.sampler;
        if let Some(Number(temperature)) = self.temperature {
            sampler.temperature = temperature;
        }
        if let Some(Number(top_p)) = self.top_p {
            // Of nothing, the likeliest token is left.
            sampler.top_p = top_p.max(f32::MIN_POSITIVE);
        }
        if let Some(Limit(top_k)) = self.top_k {
            sampler.top_k = top_k.unwrap_or(0);
        }
        if let Some(Number(min_p)) = self.min_p {
            sampler.min_p = min_p;
        }
        if let Some(Number(penalty)) = self.repetition_penalty {
            sampler.repeat_penalty = penalty;
        }
        if let Some(Limit(window)) = self.repeat_last_n {
            sampler.repeat_window = window;
        }
        if let Some(Seed(Some(seed))) = self.seed {
            sampler.seed = seed;
        }
        let penalty = |penalty: Option<Penalty>| penalty.map_or(0.0, |Number(value)| value);
        let mut tokens = self.logit_bias.map_or(Ok(Vec::new()), |map| logit_bias(model, map))?;
        if self.ignore_eos == Some(true) {
            tokens.extend(model.text.tokenizer().eos_ids().iter().map(|id| (*id, -1000.0)));
        }
        settings.bias = Bias {
            tokens,
            frequency_penalty: penalty(self.frequency_penalty),
            presence_penalty: penalty(self.presence_penalty),
        };
        Ok(settings)
    }
}

/// The texts of a field that is one or a list of them.
pub(crate) fn texts<const MOST: usize>(field: Option<StringOr<List<String, MOST>>>) -> Vec<String> {
    match field {
        None => Vec::new(),
        Some(StringOr::String(text)) => vec![text],
        Some(StringOr::Other(List(texts))) => texts,
    }
}

fn logit_bias(model: &Model, map: Map<String, Value>) -> ApiResult<Vec<(TokenId, f32)>> {
    let vocab = model.facts.n_logits;
    if map.len() > MAX_BIASED {
        let problem = format!("it has more than {MAX_BIASED} tokens");
        return Err(ApiError::field("logit_bias", problem));
    }
    let one = |(key, value): (String, Value)| {
        let is_number = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_digit());
        let token =
            key.parse().ok().filter(|_| is_number).filter(|id| (*id as usize) < vocab).map(TokenId);
        let bias = value.as_f64().filter(|bias| bias.abs() <= 100.0);
        let both = token.zip(bias.map(|bias| bias as f32));
        both.ok_or_else(|| {
            let shown: String = key.chars().take(20).collect();
            let want = format!("a token below {vocab} and a number from -100 to 100 are needed");
            ApiError::field(format!("logit_bias.{shown}"), want)
        })
    };
    map.into_iter().map(one).collect()
}

/// `finish_reason` of an answer without calls.
pub(crate) fn finish_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::MaxTokens | Finish::ContextFull => "length",
        Finish::EndOfText | Finish::Stop | Finish::Cancelled => "stop",
    }
}
