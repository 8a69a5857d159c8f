//! Choosing the next token.
//!
//! The order is that of Hugging Face `transformers`, for which models publish their settings:
//! repetition penalty, temperature, top-k, top-p, min-p, then a draw from the tokens that are left. The
//! arithmetic, `f32` over a whole vocabulary and `f64` over those that may be drawn, is additions,
//! multiplications and divisions only, `exp` and `ln` included, and sums run in a fixed order: the
//! same seed gives the same tokens on every machine.

mod bins;
pub(crate) mod error;
mod math;
mod ranks;
mod weights;

use moeflux_backend::TokenLogit;
use moeflux_core::{OptionId, SplitMix64, TokenId};
use moeflux_text::GenerationDefaults;

pub use crate::sampler::error::SamplerError;
use bins::Bins;
use math::ln;
use ranks::Ranks;
pub(crate) use ranks::likeliest_token;
use weights::Weights;

/// How many of the highest logits are searched for the nucleus before all tokens are.
const NUCLEI: [usize; 2] = [256, 2048];

/// How a token is chosen. The default is greedy.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplerOptions {
    /// Divides the logits; 0 always takes the highest.
    pub temperature: f32,
    /// Keep this many of the highest logits; 0 keeps all.
    pub top_k: usize,
    /// Keep the fewest tokens whose probabilities reach this sum; 1 keeps all.
    pub top_p: f32,
    /// Drop tokens below this share of the highest probability; 0 keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens in the history; 1 changes nothing.
    pub repeat_penalty: f32,
    /// How many of the last tokens the penalty looks at; `None` means all.
    pub repeat_window: Option<usize>,
    /// Determines all draws.
    pub seed: u64,
}

impl Default for SamplerOptions {
    fn default() -> Self {
        Self::GREEDY
    }
}

impl SamplerOptions {
    /// Always the likeliest token.
    const GREEDY: SamplerOptions = SamplerOptions {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repeat_penalty: 1.0,
        repeat_window: None,
        seed: 0,
    };

    /// How llama.cpp chooses tokens where neither the request nor the model says how. Models that think repeat themselves where
    /// they always take the likeliest token, as their makers warn.
    pub const USUAL: SamplerOptions = SamplerOptions {
        temperature: 0.8,
        top_k: 40,
        top_p: 0.95,
        min_p: 0.05,
        ..SamplerOptions::GREEDY
    };

    /// What a program says once where the model's files leave it to [`USUAL`](SamplerOptions::USUAL).
    pub fn note(defaults: &GenerationDefaults) -> Option<String> {
        let SamplerOptions { temperature, top_k, top_p, min_p, .. } = SamplerOptions::USUAL;
        (!defaults.names_sampling()).then(|| {
            format!(
                "the model's files do not say how tokens are chosen, so it is as in llama.cpp: \
                 temperature {temperature}, top_k {top_k}, top_p {top_p}, min_p {min_p}"
            )
        })
    }

    /// What the makers of a model recommend; [`USUAL`](SamplerOptions::USUAL) where they say nothing of
    /// how tokens are chosen.
    pub fn recommended(defaults: &GenerationDefaults) -> SamplerOptions {
        let plain = if defaults.names_sampling() {
            let samples = defaults.do_sample.unwrap_or(true);
            let temperature = if samples { defaults.temperature.unwrap_or(1.0) } else { 0.0 };
            SamplerOptions { temperature, ..SamplerOptions::default() }
        } else {
            SamplerOptions::USUAL
        };
        SamplerOptions {
            top_k: defaults.top_k.unwrap_or(plain.top_k),
            top_p: defaults.top_p.unwrap_or(plain.top_p),
            min_p: defaults.min_p.unwrap_or(plain.min_p),
            repeat_penalty: defaults.repetition_penalty.unwrap_or(plain.repeat_penalty),
            ..plain
        }
    }

    /// The options of one of several answers to the same request. Answer 0 keeps the seed.
    /// The others get a seed mixed from it and `answer`, so that answer `j` of seed `s` has
    /// nothing in common with answer 0 of seed `s + j`.
    pub fn of_answer(&self, answer: u64) -> SamplerOptions {
        let seed = match answer {
            0 => self.seed,
            _ => SplitMix64::first_of(SplitMix64::first_of(self.seed).wrapping_add(answer)),
        };
        SamplerOptions { seed, ..self.clone() }
    }
}

/// Draws tokens by fixed options; holds the state of the random numbers.
#[derive(Clone, Debug)]
pub struct Sampler {
    options: SamplerOptions,
    random: Xoshiro256,
    scratch: Scratch,
}

/// Buffers that calls use again.
#[derive(Clone, Debug, Default)]
struct Scratch {
    penalised: Vec<f32>,
    maxima: Vec<i32>,
    top: Vec<TokenLogit>,
}

impl Sampler {
    /// A sampler with these options.
    ///
    /// # Errors
    /// Names the first option that is out of range.
    pub fn new(options: SamplerOptions) -> Result<Self, SamplerError> {
        let SamplerOptions { temperature, top_p, min_p, repeat_penalty, .. } = options;
        let zero_to_finite = |x: f32| x >= 0.0 && x.is_finite();
        for (option, value, is_good, want) in [
            (OptionId::Temperature, temperature, zero_to_finite(temperature), "0 or more"),
            (OptionId::TopP, top_p, top_p > 0.0 && top_p <= 1.0, "above 0 and at most 1"),
            (OptionId::MinP, min_p, (0.0..=1.0).contains(&min_p), "between 0 and 1"),
            (
                OptionId::RepeatPenalty,
                repeat_penalty,
                repeat_penalty > 0.0 && repeat_penalty.is_finite(),
                "above 0",
            ),
        ] {
            if !is_good {
                return Err(SamplerError::Option { option, value, want });
            }
        }
        let random = Xoshiro256::new(options.seed);
        Ok(Self { options, random, scratch: Scratch::default() })
    }

    /// How many of the highest logits suffice to choose a token after any text; `None` where all
    /// are needed.
    pub(crate) fn n_top(&self) -> Option<usize> {
        let SamplerOptions { temperature, top_k, repeat_penalty, .. } = self.options;
        let n = if temperature == 0.0 { 1 } else { top_k };
        (repeat_penalty == 1.0 && n > 0).then_some(n)
    }

    /// Chooses the token that [`Sampler::sample`] would choose from all logits. `top` has the
    /// highest ones in descending order: [`Sampler::n_top`] or more, or all above minus infinity.
    ///
    /// # Panics
    /// If `top` is empty.
    pub(crate) fn sample_top(&mut self, top: &[TokenLogit]) -> TokenId {
        let Self { options, random, .. } = self;
        if options.temperature == 0.0 {
            return top[0].token;
        }
        let n = options.top_k.min(top.len());
        draw_of_top(options, &top[..n], random.next_unit())
    }

    /// Chooses a token. `logits`: `[vocab]`; `history`: the tokens so far, for the penalty (ids
    /// outside of the vocabulary are ignored). Of equal logits the lowest id comes first. One
    /// random number is used per call, none if greedy.
    pub fn sample(&mut self, logits: &[f32], history: &[TokenId]) -> Result<TokenId, SamplerError> {
        let Self { options, random, scratch } = self;
        let Scratch { penalised, maxima, top } = scratch;
        let mut logits = logits;
        if options.repeat_penalty != 1.0 && !history.is_empty() {
            penalise(options, logits, history, penalised);
            logits = penalised;
        }
        let ranks = Ranks::of(logits, maxima)?;
        let is_greedy = options.temperature == 0.0;
        Ok(if is_greedy {
            ranks.likeliest()
        } else {
            draw(options, ranks, top, random.next_unit())
        })
    }
}

/// Applies the repetition penalty, once for each token of the history.
fn penalise(
    options: &SamplerOptions,
    logits: &[f32],
    history: &[TokenId],
    penalised: &mut Vec<f32>,
) {
    let penalty = options.repeat_penalty;
    let window = options.repeat_window.unwrap_or(history.len()).min(history.len());
    penalised.clear();
    penalised.extend_from_slice(logits);
    for id in &history[history.len() - window..] {
        let Some(logit) = logits.get(id.0 as usize).filter(|logit| logit.is_finite()) else {
            continue;
        };
        let changed = if *logit > 0.0 { logit / penalty } else { logit * penalty };
        penalised[id.0 as usize] = changed.clamp(f32::MIN, f32::MAX);
    }
}

fn draw(
    options: &SamplerOptions,
    ranks: Ranks<'_>,
    top: &mut Vec<TokenLogit>,
    share: f64,
) -> TokenId {
    let SamplerOptions { temperature, top_k, top_p, min_p, .. } = *options;
    let n_logits = ranks.logits.len();
    if top_k > 0 {
        ranks.top_n(top_k.min(n_logits), top);
        return draw_of_top(options, top, share);
    }
    let weights = Weights::new(ranks.max(), temperature);
    if top_p == 1.0 && min_p == 0.0 {
        return weights.choose_of_all(ranks.logits, share);
    }
    // The highest weight is 1.
    let (wanted, least) = (weights.total(ranks.logits) * f64::from(top_p), f64::from(min_p));
    for n in NUCLEI {
        ranks.top_n(n, top);
        let nucleus = weights.nucleus(top, wanted, least);
        if nucleus.is_some() || top.len() < n {
            return weights.choose_nucleus(top, nucleus, share);
        }
    }
    Bins::new(weights, ranks.logits).draw(wanted, least, share)
}

/// Draws from logits in descending order; all others have no chance.
fn draw_of_top(options: &SamplerOptions, top: &[TokenLogit], share: f64) -> TokenId {
    let SamplerOptions { temperature, top_p, min_p, .. } = *options;
    let weights = Weights::new(top[0].logit, temperature);
    let nucleus = if top_p == 1.0 && min_p == 0.0 {
        None
    } else {
        let wanted = weights.total_of_top(top) * f64::from(top_p);
        weights.nucleus(top, wanted, f64::from(min_p))
    };
    weights.choose_nucleus(top, nucleus, share)
}

/// The `n` likeliest tokens with the natural logarithms of their probabilities, by the
/// logits without any bias, likeliest first; fewer where others are impossible.
///
/// # Errors
/// Where a logit is NaN or infinite.
pub fn logprobs(logits: &[f32], n: usize) -> Result<Vec<(TokenId, f32)>, SamplerError> {
    let mut top = Vec::new();
    let mut maxima = Vec::new();
    let ranks = Ranks::of(logits, &mut maxima)?;
    ranks.top_n(n, &mut top);
    let log_sum = log_sum_exp(ranks);
    let logprob = |top: &TokenLogit| (top.token, (f64::from(top.logit) - log_sum) as f32);
    Ok(top.iter().map(logprob).collect())
}

/// The natural logarithm of one token's probability, by the logits without any bias. The token
/// must be in the vocabulary.
///
/// # Errors
/// Where a logit is NaN or infinite.
pub fn logprob(logits: &[f32], token: TokenId) -> Result<f32, SamplerError> {
    let log_sum = log_sum_exp(Ranks::of(logits, &mut Vec::new())?);
    Ok((f64::from(logits[token.0 as usize]) - log_sum) as f32)
}

fn log_sum_exp(ranks: Ranks<'_>) -> f64 {
    f64::from(ranks.max()) + ln(Weights::new(ranks.max(), 1.0).total(ranks.logits))
}

/// xoshiro256++ 1.0 by Blackman and Vigna, seeded by splitmix64 as its authors advise.
#[derive(Clone, Debug)]
struct Xoshiro256 {
    state: [u64; 4],
}

impl Xoshiro256 {
    fn new(seed: u64) -> Self {
        let mut words = SplitMix64::new(seed);
        Self { state: std::array::from_fn(|_| words.next_u64()) }
    }

    fn next(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let out = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let (c, d) = (c ^ a, d ^ b);
        self.state = [a ^ d, b ^ c, c ^ (b << 17), d.rotate_left(45)];
        out
    }

    /// Uniform in [0, 1), a multiple of 2^-53.
    fn next_unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

#[cfg(test)]
mod tests;
