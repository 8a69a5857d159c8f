//! How surprised a model is by a text, and how far it is from another model.

use moeflux_core::TokenId;

use crate::error::EngineError;
use crate::session::Session;

/// The mean surprise over the tokens of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Perplexity {
    /// Tokens that were predicted; the first of every sequence is not.
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

    fn count(&mut self, logits: &[f32], next: Option<&TokenId>) {
        if let Some(next) = next {
            let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            self.nll -= f64::from(logits[next.0 as usize] - max) - log_sum(logits, max);
            self.n_tokens += 1;
        }
    }
}

/// How far a model is from a reference, over the tokens of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Divergence {
    /// The model's own surprise.
    pub own: Perplexity,
    /// The reference's.
    pub reference: Perplexity,
    /// Positions at which both were asked.
    pub n_rows: usize,
    /// Sum of the Kullback-Leibler divergences of the model from the
    /// reference, in nats.
    pub kl: f64,
    /// Positions at which both find the same token likeliest.
    pub n_same: usize,
}

impl Divergence {
    /// Mean divergence, in nats a token.
    pub fn mean_kl(&self) -> f64 {
        self.kl / self.n_rows as f64
    }

    /// Share of the positions at which both find the same token likeliest.
    pub fn same_choice(&self) -> f64 {
        self.n_same as f64 / self.n_rows as f64
    }
}

/// Measures sequences, each from an empty session; `progress` learns how many
/// tokens are done.
///
/// # Errors
/// Where a step fails.
pub fn perplexity(
    session: &mut Session,
    sequences: &[Vec<TokenId>],
    progress: &mut dyn FnMut(usize),
) -> Result<Perplexity, EngineError> {
    let mut total = Perplexity::default();
    let mut n_done = 0;
    for tokens in sequences {
        session.clear();
        session.eval_all(tokens, &mut |position, logits| {
            total.count(logits, tokens.get(position + 1));
            n_done += 1;
            progress(n_done);
            Ok(())
        })?;
    }
    Ok(total)
}

/// Bytes of the reference's logits that are kept at once.
const LOGIT_BYTES: usize = 64 << 20;

/// Measures how far a model is from a reference of the same vocabulary over
/// sequences, each from empty sessions; `progress` learns how many tokens are
/// done.
///
/// # Errors
/// Where a step fails.
pub fn divergence(
    session: &mut Session,
    reference: &mut Session,
    sequences: &[Vec<TokenId>],
    progress: &mut dyn FnMut(usize),
) -> Result<Divergence, EngineError> {
    let mut total = Divergence::default();
    for tokens in sequences {
        session.clear();
        reference.clear();
        let mut rest = &tokens[..];
        while !rest.is_empty() {
            let start = tokens.len() - rest.len();
            let (now, later) = rest.split_at(rest.len().min(rows_at_once(session)));
            let mut want = Vec::new();
            reference.eval_all(now, &mut |position, logits| {
                total.reference.count(logits, tokens.get(position + 1));
                want.extend_from_slice(logits);
                Ok(())
            })?;
            session.eval_all(now, &mut |position, logits| {
                total.own.count(logits, tokens.get(position + 1));
                let want = &want[(position - start) * logits.len()..][..logits.len()];
                total.kl += kl(want, logits);
                total.n_same += usize::from(likeliest(want) == likeliest(logits));
                total.n_rows += 1;
                progress(total.n_rows);
                Ok(())
            })?;
            rest = later;
        }
    }
    Ok(total)
}

fn rows_at_once(session: &Session) -> usize {
    (LOGIT_BYTES / (size_of::<f32>() * session.engine.shape().vocab.max(1))).max(1)
}

/// `sum p ln(p / q)` of the distributions of logits.
fn kl(p: &[f32], q: &[f32]) -> f64 {
    let [p_max, q_max] =
        [p, q].map(|logits| logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let (p_sum, q_sum) = (log_sum(p, p_max), log_sum(q, q_max));
    let term = |(p, q): (&f32, &f32)| {
        let (p, q) = (f64::from(p - p_max) - p_sum, f64::from(q - q_max) - q_sum);
        p.exp() * (p - q)
    };
    p.iter().zip(q).map(term).sum()
}

/// The logarithm of the sum of `e` to the logits less `max`.
fn log_sum(logits: &[f32], max: f32) -> f64 {
    logits.iter().map(|logit| f64::from(logit - max).exp()).sum::<f64>().ln()
}

/// The first of the greatest.
fn likeliest(logits: &[f32]) -> usize {
    (0..logits.len()).reduce(|a, b| if logits[b] > logits[a] { b } else { a }).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_are_as_likely_as_their_number() {
        let mut got = Perplexity::default();
        got.count(&[3.0; 8], Some(&TokenId(5)));
        assert!((got.mean_nll() - 8f64.ln()).abs() < 1e-12 && got.n_tokens == 1);
        got.count(&[3.0; 8], None);
        assert_eq!(got.n_tokens, 1);
    }

    #[test]
    fn divergence_is_zero_from_itself_and_known_of_two_coins() {
        let logits = [0.3, -2.0, 7.5];
        assert!(kl(&logits, &logits.map(|logit| logit + 4.0)).abs() < 1e-6);
        let coin = |p: f32| [p.ln(), (1.0 - p).ln()];
        let want = 0.5 * (0.5f64 / 0.9).ln() + 0.5 * (0.5f64 / 0.1).ln();
        assert!((kl(&coin(0.5), &coin(0.9)) - want).abs() < 1e-6);
        assert_eq!(likeliest(&[1.0, 4.0, 4.0]), 1);
    }
}
