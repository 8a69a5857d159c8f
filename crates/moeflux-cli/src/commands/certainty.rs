//! How certain a model is of the first words of its answer.

use moeflux::TokenLogprob;

/// Tokens that are looked at.
const N_TOKENS: usize = 4;

/// The least probability of a token that counts as certain. The demo's right answers to 17 of 30
/// sums and to questions on documentation that it knows had no token below 0.54 among the first
/// four; of 22 questions on other things, all but two had one below this.
const LEAST: f32 = 0.5;

/// Gathers the probabilities of the first tokens of an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Certainty {
    n: usize,
    /// The lowest probability so far.
    least: f32,
}

impl Certainty {
    pub(super) fn new() -> Certainty {
        Certainty { n: 0, least: 1.0 }
    }

    /// Whether it may still turn out either way.
    pub(super) fn is_open(&self) -> bool {
        self.n < N_TOKENS && !self.is_guess()
    }

    /// Takes the natural logarithm of the probability of the next token.
    fn add(&mut self, logprob: f32) {
        self.n += 1;
        self.least = self.least.min(logprob.exp());
    }

    /// Takes more tokens, as long as it may turn out either way.
    pub(super) fn add_all(&mut self, tokens: &[TokenLogprob]) {
        for token in tokens {
            if self.is_open() {
                self.add(token.logprob_without_calls);
            }
        }
    }

    /// Whether a token of the beginning was less likely than all others together.
    pub(super) fn is_guess(&self) -> bool {
        self.least < LEAST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_unlikely_token_at_the_beginning_is_a_guess() {
        let of = |all: &[f32]| {
            let mut certainty = Certainty::new();
            for probability in all {
                if certainty.is_open() {
                    certainty.add(probability.ln());
                }
            }
            certainty
        };
        assert!(of(&[]).is_open() && !of(&[]).is_guess());
        assert!(of(&[0.9, 0.6]).is_open());
        assert!(!of(&[0.9, 0.6, 0.8, 1.0, 0.1]).is_guess());
        assert!(of(&[0.9, 0.4]).is_guess() && !of(&[0.9, 0.4]).is_open());
    }
}
