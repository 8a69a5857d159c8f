//! Choosing the next token.
//!
//! The order is that of Hugging Face `transformers`, for which models publish their settings:
//! repetition penalty, temperature, top-k, top-p, min-p, then a draw from what is left. The
//! arithmetic is `f64` with additions, multiplications and divisions only, `exp` and `ln`
//! included, and sums run in a fixed order: the same seed gives the same tokens on every machine.

mod likeliest;
mod math;

use std::cmp::Ordering;

use moeflux_core::TokenId;

pub(crate) use likeliest::likeliest;
use math::{exp, ln};

/// How to choose. The default is greedy.
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
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repeat_penalty: 1.0,
            repeat_window: None,
            seed: 0,
        }
    }
}

/// Why no token could be chosen.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SamplerError {
    /// An option has a value that means nothing.
    #[error("{option} is {value}, it must be {want}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// Its value.
        value: f32,
        /// What would be accepted.
        want: &'static str,
    },
    /// The model's output is damaged.
    #[error("the logit of token {token} is {value}: the model's output is damaged")]
    Logit {
        /// Where the value stands.
        token: usize,
        /// NaN or positive infinity.
        value: f32,
    },
    /// There is nothing to choose from.
    #[error("none of {n_logits} tokens may be chosen: every logit is -inf")]
    Empty {
        /// Length of the logits.
        n_logits: usize,
    },
}

/// Draws tokens by fixed options; holds the state of the random numbers.
#[derive(Clone, Debug)]
pub struct Sampler {
    options: SamplerOptions,
    random: Xoshiro256,
    candidates: Vec<Candidate>, // kept between calls for its memory
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    id: u32,
    logit: f64,
}

impl Sampler {
    /// Fails naming the first option that is out of range.
    pub fn new(options: SamplerOptions) -> Result<Self, SamplerError> {
        let SamplerOptions { temperature, top_p, min_p, repeat_penalty, .. } = options;
        let zero_to_finite = |x: f32| x >= 0.0 && x.is_finite();
        for (option, value, is_good, want) in [
            ("temperature", temperature, zero_to_finite(temperature), "0 or more"),
            ("top_p", top_p, top_p > 0.0 && top_p <= 1.0, "above 0 and at most 1"),
            ("min_p", min_p, (0.0..=1.0).contains(&min_p), "between 0 and 1"),
            (
                "repeat_penalty",
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
        Ok(Self { options, random, candidates: Vec::new() })
    }

    /// Whether it takes the likeliest token, whatever came before.
    pub(crate) fn takes_the_likeliest(&self) -> bool {
        self.options.temperature == 0.0 && self.options.repeat_penalty == 1.0
    }

    /// Chooses a token. `logits`: `[vocab]`; `history`: the tokens so far, for the penalty (ids
    /// outside of the vocabulary are ignored). Of equal logits the lowest id comes first. One
    /// random number is used per call, none if greedy.
    pub fn sample(&mut self, logits: &[f32], history: &[TokenId]) -> Result<TokenId, SamplerError> {
        check(logits)?;
        let is_bare = self.options.repeat_penalty == 1.0 || history.is_empty();
        if self.options.temperature == 0.0 && is_bare {
            let best = likeliest(logits).map(|it| TokenId(it as u32));
            return best.ok_or(SamplerError::Empty { n_logits: logits.len() });
        }
        self.candidates.clear();
        let all = logits.iter().enumerate();
        self.candidates
            .extend(all.map(|(id, &x)| Candidate { id: id as u32, logit: f64::from(x) }));
        self.penalise(logits, history);
        if self.options.temperature == 0.0 {
            let best = self.candidates.iter().min_by(|a, b| a.order(b)).map(|c| TokenId(c.id));
            return best.ok_or(SamplerError::Empty { n_logits: logits.len() });
        }
        self.candidates.retain(|c| c.logit > f64::NEG_INFINITY);
        Ok(self.draw())
    }

    /// Each token of the history once, however often it occurs there.
    fn penalise(&mut self, logits: &[f32], history: &[TokenId]) {
        let penalty = f64::from(self.options.repeat_penalty);
        if penalty == 1.0 {
            return;
        }
        let window = self.options.repeat_window.unwrap_or(history.len()).min(history.len());
        for id in &history[history.len() - window..] {
            let Some(candidate) = self.candidates.get_mut(id.0 as usize) else { continue };
            let logit = f64::from(logits[id.0 as usize]);
            candidate.logit = if logit > 0.0 { logit / penalty } else { logit * penalty };
        }
    }

    fn draw(&mut self) -> TokenId {
        let options = &self.options;
        let candidates = &mut self.candidates;
        let n_kept = match options.top_k {
            0 => candidates.len(),
            k => k.min(candidates.len()),
        };
        let max = candidates.iter().map(|c| c.logit).fold(f64::NEG_INFINITY, f64::max);
        let temperature = f64::from(options.temperature);
        let weight = |c: &Candidate| exp((c.logit - max) / temperature);
        // All tokens count: their sum runs by ascending id. Only then are the leaders sorted.
        let total: f64 = candidates.iter().map(weight).sum();
        let total = if n_kept < candidates.len() {
            sort_leaders(candidates, n_kept);
            candidates.truncate(n_kept);
            candidates.iter().map(weight).sum()
        } else {
            total
        };
        let least = f64::from(options.min_p); // the highest weight is exp(0) = 1
        let (n_left, sum) = if options.top_p == 1.0 && least == 0.0 {
            (candidates.len(), total)
        } else {
            nucleus(candidates, weight, total * f64::from(options.top_p), least)
        };
        let target = self.random.next_unit() * sum;
        let mut reached = 0.0;
        let chosen = candidates[..n_left].iter().find(|c| {
            reached += weight(c);
            reached > target
        });
        TokenId(chosen.unwrap_or(&candidates[n_left - 1]).id)
    }
}

impl Candidate {
    /// The highest logit first, the lowest id among equals.
    fn order(&self, other: &Self) -> Ordering {
        other.logit.total_cmp(&self.logit).then(self.id.cmp(&other.id))
    }
}

/// Moves the `n` first candidates to the front, in order.
fn sort_leaders(candidates: &mut [Candidate], n: usize) {
    if n < candidates.len() {
        candidates.select_nth_unstable_by(n, Candidate::order);
    }
    candidates[..n].sort_unstable_by(Candidate::order);
}

/// How many leading candidates pass top-p (their weights first reach `wanted`) and min-p (none
/// weighs less than `least`), and the sum of their weights. Sorts as many as it looks at.
fn nucleus(
    candidates: &mut [Candidate],
    weight: impl Fn(&Candidate) -> f64,
    wanted: f64,
    least: f64,
) -> (usize, f64) {
    let mut n_sorted = 0;
    let mut sum = 0.0;
    for i in 0..candidates.len() {
        if i == n_sorted {
            n_sorted = (n_sorted * 8).max(256).min(candidates.len());
            sort_leaders(&mut candidates[i..], n_sorted - i);
        }
        let w = weight(&candidates[i]);
        if i > 0 && (w < least || sum >= wanted) {
            return (i, sum);
        }
        sum += w;
    }
    (candidates.len(), sum)
}

fn check(logits: &[f32]) -> Result<(), SamplerError> {
    let is_bad = |x: &f32| x.is_nan() || *x == f32::INFINITY;
    if let Some(token) = logits.iter().position(is_bad) {
        return Err(SamplerError::Logit { token, value: logits[token] });
    }
    if logits.iter().all(|&x| x == f32::NEG_INFINITY) {
        return Err(SamplerError::Empty { n_logits: logits.len() });
    }
    Ok(())
}

/// The `n` likeliest tokens with the natural logarithms of their probabilities, by the bare
/// logits, likeliest first. Fails on damaged logits.
pub fn logprobs(logits: &[f32], n: usize) -> Result<Vec<(TokenId, f32)>, SamplerError> {
    check(logits)?;
    let log_sum = log_sum_exp(logits);
    let all = logits.iter().enumerate();
    let mut candidates: Vec<_> =
        all.map(|(id, &x)| Candidate { id: id as u32, logit: f64::from(x) }).collect();
    let n = n.min(candidates.len());
    sort_leaders(&mut candidates, n);
    Ok(candidates[..n].iter().map(|c| (TokenId(c.id), (c.logit - log_sum) as f32)).collect())
}

/// The natural logarithm of one token's probability, by the bare logits. Fails on damaged
/// logits; the token must be in the vocabulary.
pub fn logprob(logits: &[f32], token: TokenId) -> Result<f32, SamplerError> {
    check(logits)?;
    Ok((f64::from(logits[token.0 as usize]) - log_sum_exp(logits)) as f32)
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    max + ln(logits.iter().map(|&x| exp(f64::from(x) - max)).sum())
}

/// xoshiro256++ 1.0 by Blackman and Vigna, seeded by splitmix64 as its authors advise.
#[derive(Clone, Debug)]
struct Xoshiro256 {
    state: [u64; 4],
}

impl Xoshiro256 {
    fn new(mut seed: u64) -> Self {
        let state = std::array::from_fn(|_| {
            seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        });
        Self { state }
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
