//! `options`: how an answer is made.

use moeflux_core::OptionId;
use serde::{Deserialize, Deserializer};

use crate::error::ApiResult;
use crate::model::Model;
use crate::request::{Integer, Limit, Number, Seed, object};
use crate::sampling::{Penalty, RepeatPenalty, Sampling, Share, Stops};
use crate::settings::Settings;

/// Options of a request.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(remote = "Self")]
pub(crate) struct Options {
    /// How freely tokens are drawn; 0 takes the likeliest.
    temperature: Option<Number<0, 100>>,
    /// Draw from this many of the likeliest tokens; 0 for all.
    top_k: Option<Limit<0>>,
    /// Draw from the fewest tokens whose probabilities reach this sum.
    top_p: Option<Share>,
    /// Leave out tokens below this share of the highest probability.
    min_p: Option<Share>,
    /// Determines draws; -1 leaves it to the server.
    seed: Option<Seed>,
    /// Tokens of the answer at most; 0 or less for no limit but the context's.
    num_predict: Option<NumPredict>,
    /// Texts that end the answer.
    stop: Option<Stops>,
    /// Divides the logits of tokens that the conversation has.
    repeat_penalty: Option<RepeatPenalty>,
    /// How many of the last tokens the repeat penalty looks at; -1 for all.
    repeat_last_n: Option<Limit<0>>,
    /// Taken from the logits of tokens that the answer has.
    presence_penalty: Option<Penalty>,
    /// Taken from a token's logit for every time that the answer has it.
    frequency_penalty: Option<Penalty>,
    /// Tokens of the context. The server's is planned when it starts.
    num_ctx: Option<Integer<0>>,
}

object!(Options);

/// Options that change nothing here.
pub(super) const HINTS: &[&str] = &[
    "options.num_keep",
    "options.num_batch",
    "options.num_gpu",
    "options.main_gpu",
    "options.num_thread",
    "options.num_gqa",
    "options.numa",
    "options.low_vram",
    "options.f16_kv",
    "options.logits_all",
    "options.vocab_only",
    "options.use_mmap",
    "options.use_mlock",
    "options.embedding_only",
    "options.draft_num_predict",
    "options.rope_frequency_base",
    "options.rope_frequency_scale",
    "options.typical_p",
    "options.tfs_z",
    "options.mirostat",
    "options.mirostat_tau",
    "options.mirostat_eta",
    "options.penalize_newline",
];

/// Tokens of an answer at most: `None` for no limit but the context's, which Ollama writes as -1,
/// -2 or 0.
#[derive(Clone, Copy, Debug)]
struct NumPredict(Option<usize>);

impl<'de> Deserialize<'de> for NumPredict {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let Number(n) = Number::<{ i32::MIN }, { i32::MAX }>::deserialize(from)?;
        Ok(NumPredict((n >= 1.0).then_some(n as usize)))
    }
}

impl Options {
    /// The settings of a request.
    pub(super) fn settings(
        self,
        model: &Model,
        top_logprobs: Option<usize>,
    ) -> ApiResult<Settings> {
        let ctx = model.text.ctx();
        if let Some(Integer(wanted)) = self.num_ctx
            && wanted > ctx
        {
            model.log_once(&format!(
                "options.num_ctx: {wanted} tokens are wanted, the context has room for {ctx} ({})",
                OptionId::Ctx
            ));
        }
        let sampling = Sampling {
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            stop: self.stop,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            repetition_penalty: self.repeat_penalty,
            repeat_last_n: self.repeat_last_n,
            seed: self.seed,
            temperature: self.temperature.map(|number| Number(number.0)),
            ..Sampling::default()
        };
        let mut settings = sampling.settings(model)?;
        settings.max_tokens = self.num_predict.and_then(|NumPredict(limit)| limit);
        settings.top_logprobs = top_logprobs;
        Ok(settings)
    }
}

/// The number of likeliest tokens that are wanted for every token; `None` where nothing is.
pub(super) fn top_logprobs<const MOST: u64>(
    is_wanted: Option<bool>,
    top: Option<Integer<0, MOST>>,
) -> Option<usize> {
    let n = top.map_or(0, |Integer(n)| n);
    (is_wanted == Some(true)).then_some(n)
}
