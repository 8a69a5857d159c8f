//! Experts that follow from the token alone, by a table: they are known before the step computes anything.
//! As `DeepseekV4HashRouter` of transformers.

use std::collections::BTreeSet;

use moeflux_backend::{Cols, Routing};
use moeflux_core::manifest::IndicesDecl;
use moeflux_core::{ExpertId, TokenId};

use crate::forward_error::ForwardError;
use crate::load::{LoadError, Weights};
use crate::step::Step;

/// Keeps the sum of scores above zero, as the reference does.
const EPS: f64 = 1e-20;

/// The experts of each token.
#[derive(Debug)]
pub(crate) struct TokenExperts {
    /// `(vocab, per_token)`.
    experts: Vec<ExpertId>,
    per_token: usize,
    /// Multiplies the weights.
    scale: f32,
}

impl TokenExperts {
    /// The table called `name`, whose rows are distinct numbers of experts.
    pub(crate) fn load(
        name: &str,
        [vocab, per_token]: [usize; 2],
        n_experts: usize,
        scale: f32,
        weights: &mut dyn Weights,
    ) -> Result<TokenExperts, LoadError> {
        let below = u32::try_from(n_experts).expect("configs bound the number of experts");
        let decl = IndicesDecl { name: name.to_owned(), rows: vocab, cols: per_token, below };
        let numbers = weights.indices(decl)?;
        let expert = |number: &u32| ExpertId(u16::try_from(*number).expect("few experts"));
        let experts: Vec<ExpertId> = numbers.iter().map(expert).collect();
        for (token, row) in experts.chunks_exact(per_token).enumerate() {
            let distinct: BTreeSet<ExpertId> = row.iter().copied().collect();
            if distinct.len() < row.len() {
                let what = format!("token {token} has one expert twice");
                return Err(weights.refuse(name, &what));
            }
        }
        Ok(TokenExperts { experts, per_token, scale })
    }

    /// The first `top_k` experts of each token.
    pub(crate) fn of<'a>(
        &'a self,
        tokens: &'a [TokenId],
        top_k: usize,
    ) -> impl Iterator<Item = ExpertId> + 'a {
        tokens.iter().flat_map(move |token| {
            let first = token.0 as usize * self.per_token;
            self.experts[first..first + top_k].iter().copied()
        })
    }

    /// The routing of a step's rows: weights are square roots of softplus of the logits of the token's
    /// experts, divided by their sum.
    pub(crate) fn route(
        &self,
        step: &mut Step<'_>,
        logits: Cols,
        top_k: usize,
        out: &mut Routing,
    ) -> Result<(), ForwardError> {
        let rows = step.rows();
        let values = step.backend.read(logits.buf, rows)?;
        out.experts.clear();
        out.experts.extend(self.of(step.tokens, top_k));
        out.weights.clear();
        let width = values.len() / rows;
        for (row, experts) in values.chunks_exact(width).zip(out.experts.chunks_exact(top_k)) {
            let logits = &row[logits.start..][..logits.len];
            let scores = || experts.iter().map(|expert| score(logits[usize::from(expert.0)]));
            let sum: f64 = scores().sum::<f64>() + EPS;
            // An expert with such a score is not among those of the token, and would hide it.
            let is_damaged = logits.iter().any(|logit| logit.is_nan());
            let weight = |score: f64| {
                if is_damaged { f32::NAN } else { (score / sum) as f32 * self.scale }
            };
            out.weights.extend(scores().map(weight));
        }
        Ok(())
    }
}

/// `sqrt(ln(1 + e^x))`.
fn score(logit: f32) -> f64 {
    let x = f64::from(logit);
    let softplus = if x > 20.0 { x } else { x.exp().ln_1p() };
    softplus.sqrt()
}

#[cfg(test)]
mod tests {
    use super::score;

    #[test]
    fn scores_are_roots_of_softplus() {
        for (logit, want) in [(0.0, 0.832_554_6), (30.0, 5.477_225_6), (-30.0, 3.059_023e-7)] {
            let got = score(logit);
            assert!((got / want - 1.0).abs() < 1e-6, "{logit}: {got} {want}");
        }
        assert!(score(f32::NAN).is_nan() && score(f32::NEG_INFINITY) == 0.0);
    }
}
