//! Policies and predictors scored on recorded routings, without a drive, beside
//! the optimum.

use std::collections::BTreeSet;

use moeflux_core::ExpertId;

use crate::plan::Ordinal;
use crate::policy::{Policy, policy};
use crate::trace::{RoutingTrace, TracedLayer};
use crate::{CachePolicy, Prefetch};

/// How a policy fared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replay {
    /// Experts requested.
    pub requests: u64,
    /// Of these, how many were in the cache.
    pub hits: u64,
}

/// How a predictor fared whose predictions are all read in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefetchReplay {
    /// Requests, and those that found their expert.
    pub demand: Replay,
    /// Reads, demanded or predicted.
    pub reads: u64,
    /// Experts predicted.
    pub predictions: u64,
    /// Of these, how many were then requested.
    pub right: u64,
}

impl Replay {
    /// Share of requested experts that were in the cache; 0 before the first.
    pub fn hit_rate(&self) -> f64 {
        if self.requests == 0 { 0.0 } else { self.hits as f64 / self.requests as f64 }
    }
}

/// Replays the tokens of a trace from a given one on; those before only teach.
#[derive(Clone, Copy, Debug)]
pub struct Replayer<'a> {
    trace: &'a RoutingTrace,
    first_counted: usize,
}

impl<'a> Replayer<'a> {
    /// Counts every token.
    pub fn new(trace: &'a RoutingTrace) -> Replayer<'a> {
        Replayer { trace, first_counted: 0 }
    }

    /// Leaves out the first tokens, which find an empty cache.
    #[must_use]
    pub fn skip(self, n_tokens: usize) -> Replayer<'a> {
        Replayer { first_counted: n_tokens, ..self }
    }

    /// Experts of all layers.
    pub fn n_experts(&self) -> usize {
        self.trace.shape().layers.len() * self.trace.shape().n_experts
    }

    /// A cache that reads what is requested.
    pub fn policy(&self, choice: CachePolicy, n_slots: usize) -> Replay {
        self.prefetch(choice, n_slots, Prefetch::Off).demand
    }

    /// A cache that also reads what is predicted, before each layer.
    pub fn prefetch(
        &self,
        choice: CachePolicy,
        n_slots: usize,
        prefetch: Prefetch,
    ) -> PrefetchReplay {
        let mut cache = Cache::new(choice, self.n_experts(), n_slots);
        let mut got = PrefetchReplay::default();
        let top_k = self.trace.shape().top_k;
        let mut last = vec![Vec::new(); self.trace.shape().layers.len()];
        self.each(|token, place, layer| {
            let chosen: Vec<Ordinal> =
                layer.scores[..top_k].iter().map(|it| self.ordinal(place, it.0)).collect();
            let predicted: Vec<Ordinal> = match prefetch {
                Prefetch::Off => Vec::new(),
                Prefetch::LastToken => std::mem::replace(&mut last[place], chosen.clone()),
                Prefetch::Lookahead | Prefetch::Auto => {
                    layer.predicted.iter().map(|&it| self.ordinal(place, it)).collect()
                }
            };
            let n_read = cache.read_ahead(&predicted);
            for &(expert, score) in &layer.scores {
                cache.policy.scored(self.ordinal(place, expert), score);
            }
            let n_hits = cache.request_all(&chosen);
            if token >= self.first_counted {
                let n_wanted = chosen.len() as u64;
                got.demand.requests += n_wanted;
                got.demand.hits += n_hits;
                got.reads += n_read + (n_wanted - n_hits);
                got.predictions += predicted.len() as u64;
                got.right += predicted.iter().filter(|it| chosen.contains(it)).count() as u64;
            }
        });
        got
    }

    /// Belady's optimum, which knows the future: whatever is wanted latest
    /// leaves.
    pub fn optimum(&self, n_slots: usize) -> Replay {
        let n_layers = self.trace.shape().layers.len();
        let top_k = self.trace.shape().top_k;
        // By expert, when it is requested, the last time first.
        let mut uses: Vec<Vec<usize>> = vec![Vec::new(); self.n_experts()];
        self.each(|token, place, layer| {
            for (expert, _) in &layer.scores[..top_k] {
                uses[self.ordinal(place, *expert).idx()].push(token * n_layers + place);
            }
        });
        uses.iter_mut().for_each(|it| it.reverse());
        let mut resident: BTreeSet<(usize, Ordinal)> = BTreeSet::new();
        let mut got = Replay::default();
        self.each(|token, place, layer| {
            let now = token * n_layers + place;
            let chosen = layer.scores[..top_k].iter().map(|it| self.ordinal(place, it.0));
            let mut n_hits = 0;
            for expert in chosen.clone() {
                n_hits += u64::from(resident.remove(&(now, expert)));
                uses[expert.idx()].pop();
            }
            for expert in chosen {
                let next = uses[expert.idx()].last().copied().unwrap_or(usize::MAX);
                resident.insert((next, expert));
                if resident.len() > n_slots {
                    resident.pop_last();
                }
            }
            if token >= self.first_counted {
                got.requests += top_k as u64;
                got.hits += n_hits;
            }
        });
        got
    }

    fn ordinal(&self, place: usize, expert: ExpertId) -> Ordinal {
        let ordinal = place * self.trace.shape().n_experts + expert.idx();
        Ordinal(u32::try_from(ordinal).expect("traces are bounded"))
    }

    fn each(&self, mut visit: impl FnMut(usize, usize, &TracedLayer)) {
        let mut layer = TracedLayer::default();
        for token in 0..self.trace.n_tokens() {
            for place in 0..self.trace.shape().layers.len() {
                self.trace.read(token, place, &mut layer);
                visit(token, place, &layer);
            }
        }
    }
}

/// A cache without content.
#[derive(Debug)]
pub(crate) struct Cache {
    policy: Box<dyn Policy>,
    is_resident: Vec<bool>,
    n_resident: usize,
    n_slots: usize,
}

impl Cache {
    pub(crate) fn new(choice: CachePolicy, n_experts: usize, n_slots: usize) -> Cache {
        let policy = policy(choice, n_experts);
        Cache { policy, is_resident: vec![false; n_experts], n_resident: 0, n_slots }
    }

    /// Whether the expert was there.
    #[cfg(test)]
    pub(crate) fn request(&mut self, expert: Ordinal) -> bool {
        self.request_all(&[expert]) == 1
    }

    /// How many of the experts that one layer wants were there.
    fn request_all(&mut self, experts: &[Ordinal]) -> u64 {
        let mut n_hits = 0;
        for &expert in experts {
            self.policy.touched(expert, 1.0);
            n_hits += u64::from(self.is_resident[expert.idx()]);
        }
        for &expert in experts {
            self.admit(expert, experts);
        }
        n_hits
    }

    /// How many of the predicted experts had to be read.
    fn read_ahead(&mut self, experts: &[Ordinal]) -> u64 {
        let n_absent = experts.iter().filter(|it| !self.is_resident[it.idx()]).count();
        for &expert in experts {
            self.admit(expert, experts);
        }
        n_absent as u64
    }

    /// Makes room for an expert, not at the expense of `kept`.
    fn admit(&mut self, expert: Ordinal, kept: &[Ordinal]) {
        if self.is_resident[expert.idx()] {
            return;
        }
        if self.n_resident == self.n_slots {
            let Some(victim) = self.policy.victim(&|it| !kept.contains(&it)) else { return };
            self.policy.removed(victim);
            self.is_resident[victim.idx()] = false;
            self.n_resident -= 1;
        }
        self.policy.inserted(expert);
        self.is_resident[expert.idx()] = true;
        self.n_resident += 1;
    }
}

#[cfg(test)]
mod tests {
    use moeflux_core::LayerIdx;
    use proptest::prelude::*;

    use super::*;
    use crate::trace::TraceShape;

    const ALL: [CachePolicy; 3] = [CachePolicy::Lru, CachePolicy::Frequency, CachePolicy::Score];

    /// Two layers of eight experts, two a token; every layer is predicted right.
    fn trace(tokens: &[[[u16; 2]; 2]]) -> RoutingTrace {
        let layers = vec![LayerIdx(0), LayerIdx(1)];
        let (n_experts, top_k, n_scores) = (8, 2, 2);
        let has_predictions = true;
        let shape =
            TraceShape { layers, n_experts, top_k, n_scores, has_predictions, slot_bytes: 1 };
        let mut bytes = shape.header();
        for token in tokens {
            let layer = |it: &[u16; 2]| TracedLayer {
                scores: it.iter().map(|&it| (ExpertId(it), 0.5)).collect(),
                predicted: it.iter().map(|&it| ExpertId(it)).collect(),
            };
            shape.encode(&token.iter().map(layer).collect::<Vec<_>>(), &mut bytes);
        }
        RoutingTrace::parse(bytes).unwrap()
    }

    #[test]
    fn the_optimum_keeps_what_comes_again_first() {
        let cycle = [[[0, 1], [0, 1]], [[2, 3], [0, 1]], [[0, 1], [0, 1]], [[2, 3], [0, 1]]];
        let trace = trace(&cycle);
        let replayer = Replayer::new(&trace);
        // Six experts in turn through four slots: the two of layer 1 and two others stay.
        assert_eq!(replayer.optimum(4), Replay { requests: 16, hits: 6 + 2 });
        assert_eq!(replayer.optimum(16).hits, 16 - 6);
        assert_eq!(replayer.optimum(0).hits, 0);
        assert_eq!(replayer.skip(2).optimum(16), Replay { requests: 8, hits: 8 });
    }

    #[test]
    fn what_is_predicted_right_is_there() {
        let trace = trace(&[[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[1, 2], [3, 4]]]);
        for choice in ALL {
            let got = Replayer::new(&trace).prefetch(choice, 4, Prefetch::Lookahead);
            assert_eq!((got.demand.hits, got.predictions, got.right), (12, 12, 12));
            let got = Replayer::new(&trace).prefetch(choice, 4, Prefetch::LastToken);
            assert_eq!((got.predictions, got.right), (8, 0));
        }
    }

    proptest! {
        #[test]
        fn no_policy_beats_the_optimum(
            tokens in proptest::collection::vec(
                [[0u16..4, 4u16..8], [0u16..4, 4u16..8]], 1..60
            ),
            n_slots in 4usize..16,
        ) {
            let trace = trace(&tokens);
            let replayer = Replayer::new(&trace);
            let best = replayer.optimum(n_slots).hits;
            for choice in ALL {
                prop_assert!(replayer.policy(choice, n_slots).hits <= best, "{choice:?}");
            }
        }
    }
}
