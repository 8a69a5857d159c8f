//! Weights of logits in a draw.

use moeflux_backend::TokenLogit;
use moeflux_core::TokenId;

use super::math::{exp, exp_f32};

/// Partial sums of a block.
const LANES: usize = 16;

/// Tokens whose weights are added up before others come.
const BLOCK: usize = 512;

/// Weighs logits: `exp((logit - max) / temperature)`, so that the highest has 1. Few are
/// weighed in `f64`, all of a vocabulary in `f32`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weights {
    max: f32,
    /// 1 / temperature.
    sharpness: f64,
}

impl Weights {
    pub(super) fn new(max: f32, temperature: f32) -> Weights {
        Weights { max, sharpness: 1.0 / f64::from(temperature) }
    }

    pub(super) fn of(self, logit: f32) -> f64 {
        exp((f64::from(logit) - f64::from(self.max)) * self.sharpness)
    }

    /// Of all tokens.
    pub(super) fn total(self, logits: &[f32]) -> f64 {
        logits.chunks(BLOCK).map(|block| self.of_block(block)).sum()
    }

    /// The logarithm of a weight.
    pub(super) fn exponent(self, logit: f32) -> f32 {
        (logit - self.max) * (self.sharpness as f32).min(f32::MAX)
    }

    /// Of at most [`BLOCK`] tokens.
    fn of_block(self, block: &[f32]) -> f64 {
        let mut sums = [0.0; LANES];
        for weights in self.each_of(block).as_chunks::<LANES>().0 {
            for (sum, weight) in sums.iter_mut().zip(weights) {
                *sum += weight;
            }
        }
        sums.iter().copied().map(f64::from).sum()
    }

    /// Those of at most [`BLOCK`] tokens, and zeros.
    fn each_of(self, block: &[f32]) -> [f32; BLOCK] {
        let mut weights = [0.0; BLOCK];
        for (weight, logit) in weights.iter_mut().zip(block) {
            *weight = exp_f32(self.exponent(*logit));
        }
        weights
    }

    /// Calls `take` with every logit and its weight.
    pub(super) fn for_each(self, logits: &[f32], mut take: impl FnMut(f32, f32)) {
        for block in logits.chunks(BLOCK) {
            let weights = self.each_of(block);
            block.iter().zip(weights).for_each(|(logit, weight)| take(*logit, weight));
        }
    }

    /// Of some of the highest logits alone.
    pub(super) fn total_of_top(self, top: &[TokenLogit]) -> f64 {
        top.iter().map(|token| self.of(token.logit)).sum()
    }

    /// How many of the highest logits are in the nucleus, and the sum of their weights: until it reaches
    /// `wanted` (top-p) or until a weight is below `least` (min-p). `None` where neither happens
    /// among them.
    pub(super) fn nucleus(
        self,
        top: &[TokenLogit],
        wanted: f64,
        least: f64,
    ) -> Option<(usize, f64)> {
        let mut sum = 0.0;
        for (i, token) in top.iter().enumerate() {
            let weight = self.of(token.logit);
            if i > 0 && (weight < least || sum >= wanted) {
                return Some((i, sum));
            }
            sum += weight;
        }
        None
    }

    /// Chooses among the logits of the nucleus, given by their number and sum, or among all:
    /// the first at which the running sum of weights exceeds `share` of the whole sum.
    pub(super) fn choose_nucleus(
        self,
        top: &[TokenLogit],
        nucleus: Option<(usize, f64)>,
        share: f64,
    ) -> TokenId {
        let (n, sum) = nucleus.unwrap_or_else(|| (top.len(), self.total_of_top(top)));
        self.choose(&top[..n], share * sum)
    }

    /// The token at which the running sum of weights first exceeds `target`.
    pub(super) fn choose(self, top: &[TokenLogit], target: f64) -> TokenId {
        let mut reached = 0.0;
        let chosen = top.iter().find(|token| {
            reached += self.of(token.logit);
            reached > target
        });
        // Rounding may leave the last one out of reach.
        chosen.unwrap_or(&top[top.len() - 1]).token
    }

    /// The token of all at which the weights, by ascending id, first exceed this share
    /// of their sum.
    pub(super) fn choose_of_all(self, logits: &[f32], share: f64) -> TokenId {
        let sums: Vec<f64> = logits.chunks(BLOCK).map(|block| self.of_block(block)).collect();
        let target = share * sums.iter().sum::<f64>();
        let (mut reached, mut block) = (0.0, (0, 0.0));
        for (nth, sum) in sums.iter().enumerate().filter(|(_, sum)| **sum > 0.0) {
            block = (nth, reached);
            reached += sum;
            if reached > target {
                break;
            }
        }
        let (nth, mut reached) = block;
        let first = nth * BLOCK;
        let mut chosen = first;
        for (id, logit) in (first..).zip(&logits[first..]).take(BLOCK) {
            let weight = self.of(*logit);
            // Rounding may leave a block's last one out of reach.
            if weight > 0.0 {
                (reached, chosen) = (reached + weight, id);
            }
            if reached > target {
                break;
            }
        }
        TokenId(chosen as u32)
    }
}
