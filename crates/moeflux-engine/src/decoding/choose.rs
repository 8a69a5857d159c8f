//! Choosing a token of an answer, without those that are ruled out.

use moeflux_core::TokenId;
use moeflux_text::{NoCalls, Thoughts};

use crate::sampler::Sampler;
use crate::sampler::error::SamplerError;
use crate::step::{Logits, RowLogits};

/// What may rule out tokens of an answer.
#[derive(Clone, Copy)]
pub(super) struct Ruled<'a> {
    /// Calls that were not offered.
    pub(super) no_calls: Option<&'a NoCalls>,
    /// Thoughts that have had their tokens.
    pub(super) thoughts: Option<&'a Thoughts>,
}

impl<'a> Ruled<'a> {
    /// Calls alone.
    pub(super) fn by_calls(no_calls: Option<&'a NoCalls>) -> Ruled<'a> {
        Ruled { no_calls, thoughts: None }
    }

    fn thoughts_out(self) -> &'a [TokenId] {
        self.thoughts.map_or(&[], Thoughts::ruled_out)
    }

    /// The tokens that are ruled out here.
    fn out(self) -> impl Iterator<Item = TokenId> {
        let calls = self.no_calls.into_iter().flat_map(NoCalls::ruled_out);
        calls.chain(self.thoughts_out().iter().copied())
    }

    fn rules_out(self, token: TokenId) -> bool {
        self.no_calls.is_some_and(|no_calls| no_calls.rules_out(token))
            || self.thoughts_out().contains(&token)
    }

    /// The most tokens that are ruled out at any place of a draft.
    fn most(self, draft: &[TokenId]) -> usize {
        self.no_calls.map_or(0, |no_calls| no_calls.most_ruled_out(draft))
            + self.thoughts.map_or(0, Thoughts::most_ruled_out)
    }
}

/// Chooses a token by the logits after a text, `before`. Tokens that are ruled out count as
/// impossible: what the others get is what they would get if the model had never heard of these.
///
/// # Errors
/// Where the logits are damaged, or nothing is left to choose from.
pub(super) fn choose(
    sampler: &mut Sampler,
    ruled: Ruled<'_>,
    logits: &mut RowLogits,
    before: &[TokenId],
) -> Result<TokenId, SamplerError> {
    match logits {
        RowLogits::Top(top) => {
            let n_logits = top.len();
            top.retain(|one| !ruled.rules_out(one.token));
            if top.is_empty() {
                Err(SamplerError::Empty { n_logits })
            } else {
                Ok(sampler.sample_top(top))
            }
        }
        RowLogits::All(logits) => without(logits, ruled, |logits| sampler.sample(logits, before)),
    }
}

/// Calls `work` with logits in which what is ruled out is minus infinity. Afterwards the logits are
/// the model's own again. A copy of them would take longer than many a sampler.
pub(super) fn without<T>(
    logits: &mut Logits,
    ruled: Ruled<'_>,
    work: impl FnOnce(&[f32]) -> T,
) -> T {
    let ruled_out = ruled.out().map(|token| token.0 as usize);
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
pub(super) fn n_top(n: Option<usize>, ruled: Ruled<'_>, draft: &[TokenId]) -> Option<usize> {
    n.map(|n| n + ruled.most(draft))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logits_are_put_back() {
        let mut logits = Logits(vec![1.0, f32::NEG_INFINITY, 3.0]);
        let no_calls = NoCalls::of_tokens([TokenId(2)]);
        let ruled = Ruled::by_calls(Some(&no_calls));
        let all_but_one = [1.0, f32::NEG_INFINITY, f32::NEG_INFINITY];
        assert_eq!(without(&mut logits, ruled, <[f32]>::to_vec), all_but_one);
        assert_eq!(logits.0, [1.0, f32::NEG_INFINITY, 3.0]);
    }
}
