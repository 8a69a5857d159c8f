//! Draws from a nucleus of many tokens, of which only those of two bins are sorted.

use moeflux_backend::TokenLogit;
use moeflux_core::TokenId;

use super::math::exp;
use super::weights::Weights;

/// Bins, and how many of them a weight falls through until it is an e-th: the last one has
/// the tokens whose weight is below e^-32.
const N_BINS: usize = 1024;
const PER_E: f32 = 32.0;

/// Tokens sorted into bins by weight: those of a bin weigh nearly the same, and more than those of
/// the next bin.
#[derive(Debug)]
pub(super) struct Bins<'a> {
    weights: Weights,
    logits: &'a [f32],
    /// The sum of the weights of each bin.
    sums: Vec<f64>,
}

/// The likeliest tokens that are left by top-p and min-p.
struct Nucleus {
    /// Bins of which all are.
    n_whole: usize,
    /// Those of the next bin, in order.
    rest: Vec<TokenLogit>,
    /// The sum of their weights.
    sum: f64,
}

impl<'a> Bins<'a> {
    pub(super) fn new(weights: Weights, logits: &'a [f32]) -> Self {
        let mut sums = vec![0.0; N_BINS];
        weights.for_each(logits, |logit, weight| {
            sums[bin_of(weights, logit)] += f64::from(weight);
        });
        Bins { weights, logits, sums }
    }

    /// The token that [`Weights::choose_nucleus`] would choose of [`Weights::nucleus`], were all
    /// tokens sorted.
    pub(super) fn draw(&self, wanted: f64, least: f64, share: f64) -> TokenId {
        let Nucleus { n_whole, rest, sum } = self.nucleus(wanted, least);
        let target = share * sum;
        let (mut reached, mut last) = (0.0, (0, 0.0));
        for (bin, sum) in self.sums[..n_whole].iter().enumerate().filter(|(_, sum)| **sum > 0.0) {
            last = (bin, reached);
            reached += sum;
            if reached > target {
                return self.weights.choose(&self.tokens_of(bin), target - last.1);
            }
        }
        // It falls among the rest; where there is none, rounding left the last bin out of
        // reach.
        let (bin, before) = last;
        if rest.is_empty() {
            self.weights.choose(&self.tokens_of(bin), target - before)
        } else {
            self.weights.choose(&rest, target - reached)
        }
    }

    fn nucleus(&self, wanted: f64, least: f64) -> Nucleus {
        let mut sum = 0.0;
        for (bin, of_bin) in self.sums.iter().enumerate().filter(|(_, sum)| **sum > 0.0) {
            if sum > 0.0 && sum >= wanted {
                return Nucleus { n_whole: bin, rest: Vec::new(), sum };
            }
            // One bin too early, as edges are rounded.
            let lightest = exp(-(bin as f64 + 2.0) / f64::from(PER_E));
            let may_be_too_light = least > 0.0 && (lightest <= least || bin + 1 == N_BINS);
            if sum + of_bin < wanted && !may_be_too_light {
                sum += of_bin;
                continue;
            }
            let mut rest = self.tokens_of(bin);
            for i in 0..rest.len() {
                let weight = self.weights.of(rest[i].logit);
                if sum > 0.0 && (weight < least || sum >= wanted) {
                    rest.truncate(i);
                    return Nucleus { n_whole: bin, rest, sum };
                }
                sum += weight;
            }
        }
        Nucleus { n_whole: N_BINS, rest: Vec::new(), sum }
    }

    /// The tokens of a bin, in order.
    fn tokens_of(&self, bin: usize) -> Vec<TokenLogit> {
        let all = (0..).zip(self.logits);
        let is_inside = |(_, logit): &(u32, &f32)| {
            **logit > f32::NEG_INFINITY && bin_of(self.weights, **logit) == bin
        };
        let token_logit = |(id, &logit): (u32, &f32)| TokenLogit { token: TokenId(id), logit };
        let mut tokens: Vec<TokenLogit> = all.filter(is_inside).map(token_logit).collect();
        tokens.sort_unstable_by(TokenLogit::order);
        tokens
    }
}

/// Bins are numbered as weights fall, so that no token of a bin comes before one of an
/// earlier bin.
fn bin_of(weights: Weights, logit: f32) -> usize {
    ((-PER_E * weights.exponent(logit)) as usize).min(N_BINS - 1)
}
