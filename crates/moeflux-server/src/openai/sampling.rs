//! The fields that say how an answer is made.

use moeflux_engine::{Bias, Finish, TokenId};
use serde_json::Value;

use crate::conversation::Settings;
use crate::error::ApiResult;
use crate::fields::{Fields, whole_number};
use crate::model::Model;

/// Answers to one prompt at most.
const MAX_N: usize = 16;

/// Stop texts at most.
pub(crate) const MAX_STOPS: usize = 16;

/// Biased tokens at most.
const MAX_BIASED: usize = 1024;

/// Tokens beside each token's own at most.
pub(crate) const MAX_TOP: usize = 20;

/// Reads what chat and completions have in common.
pub(crate) fn parse(app: &Model, fields: &mut Fields) -> ApiResult<Settings> {
    let mut settings = Settings::of(app);
    if let Some(n) = fields.integer("n", 1, MAX_N)? {
        settings.n = n;
    }
    settings.stop = fields.strings("stop", MAX_STOPS)?;
    sampler(&mut settings, fields)?;
    let least = f64::from(-2.0f32);
    settings.bias.frequency_penalty =
        fields.number("frequency_penalty", least, 2.0)?.unwrap_or(0.0);
    settings.bias.presence_penalty = fields.number("presence_penalty", least, 2.0)?.unwrap_or(0.0);
    settings.bias.tokens = logit_bias(app, fields)?;
    if let Some(penalty) = fields.number("repetition_penalty", 0.01, 10.0)? {
        settings.sampler.repeat_penalty = penalty;
    }
    if let Some(seed) = fields.take("seed") {
        let range = i128::from(i64::MIN)..=i128::from(u64::MAX);
        let seed = whole_number(&seed).filter(|it| range.contains(it));
        // Negative ones wrap.
        settings.sampler.seed = seed
            .ok_or_else(|| fields.refuse("seed", "it must be a whole number of 64 bits"))?
            as u64;
    }
    Ok(settings)
}

/// Reads the fields that all dialects have.
pub(crate) fn sampler(settings: &mut Settings, fields: &mut Fields) -> ApiResult<()> {
    let sampler = &mut settings.sampler;
    if let Some(temperature) = fields.number("temperature", 0.0, 2.0)? {
        sampler.temperature = temperature;
    }
    if let Some(top_p) = fields.number("top_p", 0.0, 1.0)? {
        // Of nothing, the likeliest token is left.
        sampler.top_p = top_p.max(f32::MIN_POSITIVE);
    }
    if let Some(top_k) = fields.integer("top_k", 0, usize::MAX)? {
        sampler.top_k = top_k;
    }
    if let Some(min_p) = fields.number("min_p", 0.0, 1.0)? {
        sampler.min_p = min_p;
    }
    Ok(())
}

fn logit_bias(app: &Model, fields: &mut Fields) -> ApiResult<Vec<(TokenId, f32)>> {
    let Some(biases) = fields.object("logit_bias")? else { return Ok(Bias::default().tokens) };
    let vocab = app.facts.n_logits;
    let map = biases.clone().rest();
    if map.len() > MAX_BIASED {
        return Err(fields.refuse("logit_bias", format!("it has more than {MAX_BIASED} tokens")));
    }
    let one = |(key, value): (String, Value)| {
        let is_number = !key.is_empty() && key.bytes().all(|it| it.is_ascii_digit());
        let token =
            key.parse().ok().filter(|_| is_number).filter(|it| (*it as usize) < vocab).map(TokenId);
        let bias = value.as_f64().filter(|it| it.abs() <= 100.0);
        let both = token.zip(bias.map(|it| it as f32));
        let want = format!("a token below {vocab} and a number from -100 to 100 are needed");
        let shown: String = key.chars().take(20).collect();
        both.ok_or_else(|| biases.refuse(&shown, want))
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
