//! Scores policies, predictors and the optimum on recorded routings, without a drive.

use std::collections::BTreeSet;

use moeflux_core::ExpertId;

use crate::experts::plan::Ordinal;
use crate::experts::policy::{Policy, policy};
use crate::trace::{RoutingTrace, TraceShape, TracedLayer};
use crate::{CachePolicy, Prefetch};

/// The hits of a policy on a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replay {
    /// Experts requested.
    pub requests: u64,
    /// Those of `requests` that were in the cache.
    pub hits: u64,
}

/// The hits of a predictor on a trace, if all predicted experts are read in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefetchReplay {
    /// Requests and hits.
    pub demand: Replay,
    /// Reads, for requests and for predictions.
    pub reads: u64,
    /// Experts predicted.
    pub predictions: u64,
    /// Those of `predictions` that were then requested.
    pub correct: u64,
}

impl Replay {
    /// Share of requested experts that were in the cache; 0 before the first.
    pub fn hit_rate(&self) -> f64 {
        if self.requests == 0 { 0.0 } else { self.hits as f64 / self.requests as f64 }
    }
}

/// Replays a trace and counts tokens from a given one on. The tokens before it only fill the cache
/// and train the policy.
#[derive(Clone, Copy, Debug)]
pub struct Replayer<'a> {
    trace: &'a RoutingTrace,
    first_counted: usize,
    n_sequences: usize,
}

impl<'a> Replayer<'a> {
    /// Counts every token.
    pub fn new(trace: &'a RoutingTrace) -> Replayer<'a> {
        Replayer { trace, first_counted: 0, n_sequences: 1 }
    }

    /// Does not count the first `n_tokens` tokens, which find an empty cache.
    #[must_use]
    pub fn skip(self, n_tokens: usize) -> Replayer<'a> {
        Replayer { first_counted: n_tokens, ..self }
    }

    /// Cuts the trace into `n_sequences` parts of one length. Each part is a sequence that has a
    /// row in every step.
    ///
    /// # Panics
    /// If `n_sequences` is 0.
    #[must_use]
    pub fn together(self, n_sequences: usize) -> Replayer<'a> {
        assert!(n_sequences > 0, "a step has rows");
        Replayer { n_sequences, ..self }
    }

    /// Experts of all layers.
    pub fn n_experts(&self) -> usize {
        self.trace.shape().layers.len() * self.trace.shape().n_experts
    }

    /// Replays a cache that reads only requested experts.
    pub fn policy(&self, choice: CachePolicy, n_slots: usize) -> Replay {
        self.prefetch(choice, n_slots, Prefetch::Off).demand
    }

    /// Replays a cache that also reads predicted experts, before each layer.
    pub fn prefetch(
        &self,
        choice: CachePolicy,
        n_slots: usize,
        prefetch: Prefetch,
    ) -> PrefetchReplay {
        let TraceShape { layers, n_experts, .. } = self.trace.shape();
        let mut cache = Cache::new(choice, &vec![*n_experts; layers.len()], n_slots);
        let mut got = PrefetchReplay::default();
        let mut last = vec![Vec::new(); layers.len()];
        self.each(|step| {
            let predicted: Vec<Ordinal> = match prefetch {
                Prefetch::Off => Vec::new(),
                Prefetch::LastToken => {
                    let chosen = step.chosen.iter().map(|pair| pair.0).collect();
                    std::mem::replace(&mut last[step.place], chosen)
                }
                Prefetch::Lookahead | Prefetch::Auto => step.predicted.to_vec(),
            };
            let n_read = cache.read_ahead(&predicted);
            let n_hits = cache.request_all(step.chosen);
            if step.is_counted {
                let n_wanted = step.chosen.len() as u64;
                let is_correct =
                    |ordinal: &&Ordinal| step.chosen.iter().any(|pair| pair.0 == **ordinal);
                got.demand.requests += n_wanted;
                got.demand.hits += n_hits;
                got.reads += n_read + (n_wanted - n_hits);
                got.predictions += predicted.len() as u64;
                got.correct += predicted.iter().filter(is_correct).count() as u64;
            }
        });
        got
    }

    /// Replays Belady's optimum, which knows all later requests and evicts the expert that is
    /// requested latest.
    pub fn optimum(&self, n_slots: usize) -> Replay {
        // Indexed by expert: the times of its requests, the last one first.
        let mut uses: Vec<Vec<usize>> = vec![Vec::new(); self.n_experts()];
        let mut now = 0;
        self.each(|step| {
            now += 1;
            step.chosen.iter().for_each(|pair| uses[pair.0.idx()].push(now));
        });
        uses.iter_mut().for_each(|list| list.reverse());
        let mut resident: BTreeSet<(usize, Ordinal)> = BTreeSet::new();
        let mut got = Replay::default();
        now = 0;
        self.each(|step| {
            now += 1;
            let mut n_hits = 0;
            for &(expert, _) in step.chosen {
                n_hits += u64::from(resident.remove(&(now, expert)));
                uses[expert.idx()].pop();
            }
            for &(expert, _) in step.chosen {
                let next = uses[expert.idx()].last().copied().unwrap_or(usize::MAX);
                resident.insert((next, expert));
                if resident.len() > n_slots {
                    resident.pop_last();
                }
            }
            if step.is_counted {
                got.requests += step.chosen.len() as u64;
                got.hits += n_hits;
            }
        });
        got
    }

    fn each(&self, mut visit: impl FnMut(Step<'_>)) {
        let TraceShape { layers, n_experts, top_k, .. } = self.trace.shape();
        let n_steps = self.trace.n_tokens() / self.n_sequences;
        let mut layer = TracedLayer::default();
        let (mut chosen, mut predicted) = (Vec::new(), Vec::new());
        for (step, place) in
            (0..n_steps).flat_map(|step| (0..layers.len()).map(move |at| (step, at)))
        {
            let ordinal = |expert: ExpertId| {
                let ordinal = place * n_experts + expert.idx();
                Ordinal(u32::try_from(ordinal).expect("traces are bounded"))
            };
            chosen.clear();
            predicted.clear();
            for sequence in 0..self.n_sequences {
                self.trace.read(sequence * n_steps + step, place, &mut layer);
                chosen.extend(layer.scores[..*top_k].iter().map(|score| (ordinal(score.0), 1.0)));
                predicted.extend(layer.predicted.iter().map(|&expert| ordinal(expert)));
            }
            chosen.sort_unstable_by_key(|chosen| chosen.0);
            chosen.dedup_by(|again, first| {
                first.1 += if again.0 == first.0 { again.1 } else { 0.0 };
                again.0 == first.0
            });
            let mut seen = BTreeSet::new();
            predicted.retain(|&predicted| seen.insert(predicted));
            let is_counted = step * self.n_sequences >= self.first_counted;
            visit(Step { place, chosen: &chosen, predicted: &predicted, is_counted });
        }
    }
}

/// The experts that the rows of a step use in one layer.
#[derive(Clone, Copy, Debug)]
struct Step<'s> {
    /// Index of the layer in the trace.
    place: usize,
    /// Distinct and ascending, each with the number of rows that chose it.
    chosen: &'s [(Ordinal, f32)],
    /// Distinct.
    predicted: &'s [Ordinal],
    is_counted: bool,
}

/// A cache without the bytes of experts.
#[derive(Debug)]
pub(crate) struct Cache {
    policy: Box<dyn Policy>,
    is_resident: Vec<bool>,
    n_resident: usize,
    n_slots: usize,
}

impl Cache {
    /// Creates an empty cache for layers with these numbers of experts.
    pub(crate) fn new(choice: CachePolicy, layers: &[usize], n_slots: usize) -> Cache {
        let is_resident = vec![false; layers.iter().sum()];
        Cache { policy: policy(choice, layers), is_resident, n_resident: 0, n_slots }
    }

    /// Requests the experts that one layer's rows use. Returns how many were resident.
    pub(crate) fn request_all(&mut self, wanted: &[(Ordinal, f32)]) -> u64 {
        let mut n_hits = 0;
        for &(expert, n_uses) in wanted {
            self.policy.touched(expert, n_uses);
            n_hits += u64::from(self.is_resident[expert.idx()]);
        }
        self.policy.asked();
        let is_wanted =
            |ordinal: Ordinal| wanted.binary_search_by_key(&ordinal, |entry| entry.0).is_ok();
        for &(expert, _) in wanted {
            self.admit(expert, &is_wanted);
        }
        n_hits
    }

    /// Reads predicted experts. Returns how many were not resident.
    fn read_ahead(&mut self, experts: &[Ordinal]) -> u64 {
        let n_absent = experts.iter().filter(|expert| !self.is_resident[expert.idx()]).count();
        for &expert in experts {
            self.admit(expert, &|other| experts.contains(&other));
        }
        n_absent as u64
    }

    /// Makes an expert resident. Evicts another one if it must, but none for which `is_kept` is
    /// true.
    fn admit(&mut self, expert: Ordinal, is_kept: &dyn Fn(Ordinal) -> bool) {
        if self.is_resident[expert.idx()] {
            return;
        }
        if self.n_resident == self.n_slots {
            let Some(victim) = self.policy.victim(&|policy| !is_kept(policy)) else { return };
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

    const ALL: [CachePolicy; 2] = [CachePolicy::Lru, CachePolicy::Frequency];

    /// Two layers of eight experts, two a token; every layer is predicted correctly.
    fn trace(tokens: &[[[u16; 2]; 2]]) -> RoutingTrace {
        let layers = vec![LayerIdx(0), LayerIdx(1)];
        let (n_experts, top_k, n_scores) = (8, 2, 2);
        let has_predictions = true;
        let shape =
            TraceShape { layers, n_experts, top_k, n_scores, has_predictions, slot_bytes: 1 };
        let mut bytes = shape.header();
        for token in tokens {
            let layer = |pair: &[u16; 2]| TracedLayer {
                scores: pair.iter().map(|&id| (ExpertId(id), 0.5)).collect(),
                predicted: pair.iter().map(|&id| ExpertId(id)).collect(),
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
    fn rows_of_a_step_ask_for_an_expert_once() {
        let trace =
            trace(&[[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[1, 0], [3, 4]], [[5, 4], [7, 0]]]);
        let replayer = Replayer::new(&trace).together(2);
        // The first and the third token use the same experts of layer 0, and share one of layer 1.
        let want = Replay { requests: 2 + 3 + 2 + 3, hits: 0 };
        assert_eq!(replayer.policy(CachePolicy::Frequency, 16), want);
        assert_eq!(replayer.skip(2).optimum(16).requests, 2 + 3);
        assert_eq!(Replayer::new(&trace).together(5).optimum(16).requests, 0);
    }

    #[test]
    fn predicted_experts_are_resident() {
        let trace = trace(&[[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[1, 2], [3, 4]]]);
        for choice in ALL {
            let got = Replayer::new(&trace).prefetch(choice, 4, Prefetch::Lookahead);
            assert_eq!((got.demand.hits, got.predictions, got.correct), (12, 12, 12));
            let got = Replayer::new(&trace).prefetch(choice, 4, Prefetch::LastToken);
            assert_eq!((got.predictions, got.correct), (8, 0));
        }
    }

    proptest! {
        #[test]
        fn no_policy_beats_the_optimum(
            tokens in proptest::collection::vec(
                [[0u16..4, 4u16..8], [0u16..4, 4u16..8]], 1..60
            ),
            n_slots in 4usize..16,
            n_sequences in 1usize..5,
        ) {
            let trace = trace(&tokens);
            let replayer = Replayer::new(&trace).together(n_sequences);
            let best = replayer.optimum(n_slots).hits;
            for choice in ALL {
                prop_assert!(replayer.policy(choice, n_slots).hits <= best, "{choice:?}");
            }
        }
    }
}
