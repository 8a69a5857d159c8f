//! How surprised a model is by a text.

use moeflux_core::TokenId;

use crate::error::EngineError;
use crate::session::Session;

/// The mean surprise over the tokens of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Perplexity {
    /// Tokens that were predicted; the first of every window is not.
    pub n_tokens: usize,
    /// Sum of their negative log-likelihoods, in nats.
    pub nll: f64,
}

impl Perplexity {
    /// Mean negative log-likelihood, in nats a token.
    pub fn mean_nll(&self) -> f64 {
        self.nll / self.n_tokens as f64
    }

    /// `e` to the mean negative log-likelihood.
    pub fn value(&self) -> f64 {
        self.mean_nll().exp()
    }
}

/// Measures `tokens` in windows of at most `window` tokens, each from an empty
/// session; `progress` learns how many tokens are done.
///
/// # Errors
/// Where a step fails.
pub fn perplexity(
    session: &mut Session,
    tokens: &[TokenId],
    window: usize,
    progress: &mut dyn FnMut(usize),
) -> Result<Perplexity, EngineError> {
    let mut total = Perplexity::default();
    let mut n_done = 0;
    for window in tokens.chunks(window.max(2)) {
        session.clear();
        session.eval_all(window, &mut |position, logits| {
            if let Some(next) = window.get(position + 1) {
                total.nll -= log_likelihood(logits, *next);
                total.n_tokens += 1;
            }
            n_done += 1;
            progress(n_done);
            Ok(())
        })?;
    }
    Ok(total)
}

/// `ln softmax(logits)[token]`.
fn log_likelihood(logits: &[f32], token: TokenId) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|it| f64::from(it - max).exp()).sum();
    f64::from(logits[token.0 as usize] - max) - sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_are_as_likely_as_their_number() {
        let got = log_likelihood(&[3.0; 8], TokenId(5));
        assert!((got + 8f64.ln()).abs() < 1e-12);
    }
}
