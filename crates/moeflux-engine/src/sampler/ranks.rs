//! Which of many logits are the highest.

use std::cmp::Reverse;

use moeflux_backend::TokenLogit;
use moeflux_core::TokenId;

use crate::sampler::error::SamplerError;

/// Logits whose highest is found together, in vectors.
const BLOCK: usize = 64;

/// Logits that have been looked through once: the highest of each block is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ranks<'a> {
    pub(super) logits: &'a [f32],
    maxima: &'a [i32],
}

impl<'a> Ranks<'a> {
    /// Fails where a logit is damaged or none is above minus infinity; `maxima` lends
    /// its memory.
    pub(super) fn of(logits: &'a [f32], maxima: &'a mut Vec<i32>) -> Result<Self, SamplerError> {
        maxima.clear();
        maxima.extend(logits.chunks(BLOCK).map(highest));
        let lowest = logits.iter().map(key).fold(i32::MAX, i32::min);
        let highest = maxima.iter().copied().fold(i32::MIN, i32::max);
        if lowest < key(&f32::NEG_INFINITY) || highest >= key(&f32::INFINITY) {
            let is_bad = |logit: &f32| logit.is_nan() || *logit == f32::INFINITY;
            let token = logits.iter().position(is_bad).unwrap_or(0);
            return Err(SamplerError::Logit { token, value: logits[token] });
        }
        if highest <= key(&f32::NEG_INFINITY) {
            return Err(SamplerError::Empty { n_logits: logits.len() });
        }
        Ok(Ranks { logits, maxima })
    }

    /// The highest logit's, the lowest of equal ones.
    pub(super) fn likeliest(self) -> TokenId {
        let best = self.maxima.iter().copied().fold(i32::MIN, i32::max);
        let first = self.maxima.iter().position(|max| *max == best).unwrap_or(0) * BLOCK;
        let inside = self.logits[first..].iter().position(|logit| key(logit) == best);
        TokenId((first + inside.unwrap_or(0)) as u32)
    }

    /// The highest logit.
    pub(super) fn max(self) -> f32 {
        self.logits[self.likeliest().0 as usize]
    }

    /// Writes the `n` highest to `top`, in order; fewer where others are minus
    /// infinity.
    pub(super) fn top_n(self, n: usize, top: &mut Vec<TokenLogit>) {
        top.clear();
        if n == 0 {
            return;
        }
        // The n-th highest of the blocks' highest is at most the n-th highest of all.
        let mut least = key(&f32::NEG_INFINITY) + 1;
        if (1..self.maxima.len()).contains(&n) {
            let mut maxima: Vec<_> = self.maxima.iter().map(|max| Reverse(*max)).collect();
            least = least.max(maxima.select_nth_unstable(n - 1).1.0);
        }
        let blocks = self.logits.chunks(BLOCK).zip(self.maxima).enumerate();
        for (nth, (block, _)) in blocks.filter(|(_, (_, max))| **max >= least) {
            let ids = nth * BLOCK..;
            let all = ids.zip(block).filter(|(_, logit)| key(logit) >= least);
            top.extend(all.map(|(id, &logit)| TokenLogit { token: TokenId(id as u32), logit }));
        }
        if n < top.len() {
            top.select_nth_unstable_by(n, TokenLogit::order);
            top.truncate(n);
        }
        top.sort_unstable_by(TokenLogit::order);
    }
}

/// The index of the highest logit, the first of equal ones. NaN is ordered above or below all
/// numbers by its sign.
pub(crate) fn likeliest(logits: &[f32]) -> Option<usize> {
    let maxima: Vec<i32> = logits.chunks(BLOCK).map(highest).collect();
    let ranks = Ranks { logits, maxima: &maxima };
    (!logits.is_empty()).then(|| ranks.likeliest().0 as usize)
}

fn highest(block: &[f32]) -> i32 {
    block.iter().map(key).fold(i32::MIN, i32::max)
}

/// An integer that is ordered as [`f32::total_cmp`] does it.
fn key(logit: &f32) -> i32 {
    let bits = logit.to_bits().cast_signed();
    bits ^ ((bits >> 31).cast_unsigned() >> 1).cast_signed()
}

pub(crate) fn likeliest_token(logits: &[f32]) -> TokenId {
    TokenId(likeliest(logits).map_or(0, |idx| u32::try_from(idx).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn it_is_the_first_of_the_highest_wherever_it_stands() {
        assert_eq!(likeliest(&[]), None);
        assert_eq!(likeliest(&[f32::NEG_INFINITY]), Some(0));
        assert_eq!(likeliest(&[-0.0, 0.0, -1.0]), Some(1));
        assert_eq!(likeliest(&[0.0, f32::NAN, f32::INFINITY]), Some(1));
        for at in [0, 1, BLOCK - 1, BLOCK, 3 * BLOCK + 7] {
            let mut logits: Vec<f32> = (0..4 * BLOCK).map(|i| -1.0 - i as f32).collect();
            logits[at] = 2.5;
            logits[4 * BLOCK - 1] = 2.5;
            assert_eq!(likeliest(&logits), Some(at));
        }
    }

    #[test]
    fn keys_are_ordered_as_floats() {
        let floats = [f32::NEG_INFINITY, -2.0, -1.0e-40, -0.0, 0.0, 1.0e-40, 1.5, f32::INFINITY];
        assert!(floats.iter().map(key).is_sorted_by(|a, b| a < b));
    }

    proptest! {
        #[test]
        fn the_highest_are_those_of_a_sort(
            logits in prop::collection::vec(
                prop_oneof![8 => (-9..9i8).prop_map(f32::from), 1 => Just(f32::NEG_INFINITY)],
                1..900,
            ),
            n in 1..40usize,
        ) {
            let mut maxima = Vec::new();
            let Ok(ranks) = Ranks::of(&logits, &mut maxima) else { return Ok(()) };
            let all = logits.iter().enumerate().filter(|(_, logit)| logit.is_finite());
            let mut sorted: Vec<_> =
                all.map(|(id, &logit)| TokenLogit { token: TokenId(id as u32), logit }).collect();
            sorted.sort_by(TokenLogit::order);
            for n in [n, 10 * n] {
                let mut top = Vec::new();
                ranks.top_n(n, &mut top);
                prop_assert_eq!(&top[..], &sorted[..n.min(sorted.len())]);
            }
            prop_assert_eq!(ranks.likeliest(), sorted[0].token);
        }
    }
}
