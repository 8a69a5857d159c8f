//! Choosing a token of an answer, without those that are ruled out.

use moeflux_core::TokenId;
use moeflux_text::NoCalls;

use crate::sampler::Sampler;
use crate::sampler::error::SamplerError;
use crate::step::{Logits, RowLogits};

/// Chooses a token by the logits after a text, `before`. Tokens that `no_calls` rules out count as
/// impossible: what the others get is what they would get if the model had never heard of these.
///
/// # Errors
/// Where the logits are damaged, or nothing is left to choose from.
pub(super) fn choose(
    sampler: &mut Sampler,
    no_calls: Option<&NoCalls>,
    logits: &mut RowLogits,
    before: &[TokenId],
) -> Result<TokenId, SamplerError> {
    match logits {
        RowLogits::Top(top) => {
            let n_logits = top.len();
            if let Some(no_calls) = no_calls {
                top.retain(|one| !no_calls.rules_out(one.token));
            }
            if top.is_empty() {
                Err(SamplerError::Empty { n_logits })
            } else {
                Ok(sampler.sample_top(top))
            }
        }
        RowLogits::All(logits) => {
            without(logits, no_calls, |logits| sampler.sample(logits, before))
        }
    }
}

/// Calls `work` with logits in which what is ruled out is minus infinity. Afterwards the logits are
/// the model's own again. A copy of them would take longer than many a sampler.
pub(super) fn without<T>(
    logits: &mut Logits,
    no_calls: Option<&NoCalls>,
    work: impl FnOnce(&[f32]) -> T,
) -> T {
    let Some(no_calls) = no_calls else { return work(&logits.0) };
    let ruled_out = no_calls.ruled_out().map(|token| token.0 as usize);
    let own: Vec<(usize, f32)> =
        ruled_out.filter_map(|at| Some((at, *logits.0.get(at)?))).collect();
    for (at, _) in &own {
        logits.0[*at] = f32::NEG_INFINITY;
    }
    let done = work(&logits.0);
    for (at, logit) in own {
        logits.0[at] = logit;
    }
    done
}

/// How many of the highest logits suffice where `n` of those suffice that are not ruled out, at
/// every place of a draft.
pub(super) fn n_top(
    n: Option<usize>,
    no_calls: Option<&NoCalls>,
    draft: &[TokenId],
) -> Option<usize> {
    n.map(|n| n + no_calls.map_or(0, |no_calls| no_calls.most_ruled_out(draft)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logits_are_put_back() {
        let mut logits = Logits(vec![1.0, f32::NEG_INFINITY, 3.0]);
        assert_eq!(without(&mut logits, None, <[f32]>::to_vec), [1.0, f32::NEG_INFINITY, 3.0]);
        assert_eq!(logits.0, [1.0, f32::NEG_INFINITY, 3.0]);
    }
}
