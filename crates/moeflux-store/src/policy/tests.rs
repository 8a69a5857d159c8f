//! Policies scored on traces, without a drive.

use moeflux_core::{ExpertId, ExpertKey, LayerIdx};

use super::*;

/// A small generator of random numbers, the same everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % end as u64).unwrap()
    }
}

fn key(layer: usize, expert: usize) -> ExpertKey {
    let (layer, expert) = (u16::try_from(layer).unwrap(), u16::try_from(expert).unwrap());
    ExpertKey { layer: LayerIdx(layer), expert: ExpertId(expert) }
}

/// Tokens that choose experts by Zipf's law, layer by layer.
fn zipf(n_layers: usize, n_experts: usize, top_k: usize, n_tokens: usize) -> Vec<ExpertKey> {
    let mut random = Random(0x1234_5678_9ABC_DEF1);
    let shares: Vec<usize> = (0..n_experts).map(|rank| 1_000_000 / (rank + 1)).collect();
    let whole: usize = shares.iter().sum();
    let mut trace = Vec::new();
    for _ in 0..n_tokens {
        for layer in 0..n_layers {
            let mut chosen: Vec<usize> = Vec::new();
            while chosen.len() < top_k {
                let mut point = random.below(whole);
                let rank = shares.iter().position(|&share| {
                    let is_here = point < share;
                    point = point.saturating_sub(share);
                    is_here
                });
                let expert = (rank.unwrap() * 7 + layer * 3) % n_experts;
                if !chosen.contains(&expert) {
                    chosen.push(expert);
                }
            }
            trace.extend(chosen.into_iter().map(|expert| key(layer, expert)));
        }
    }
    trace
}

/// The share of hits, in per mille.
fn per_mille(trace: &[ExpertKey], n_slots: usize, choice: CachePolicy) -> u64 {
    replay(trace, n_slots, choice) * 1000 / trace.len() as u64
}

#[test]
fn frequency_beats_recency_on_skewed_routing() {
    let trace = zipf(6, 32, 4, 400);
    for share in [8, 4, 2] {
        let n_slots = 6 * 32 / share;
        let lru = per_mille(&trace, n_slots, CachePolicy::Lru);
        let frequency = per_mille(&trace, n_slots, CachePolicy::Frequency);
        assert!(frequency > lru + 30, "1/{share}: {frequency} to {lru}");
    }
}

#[test]
fn frequency_forgets_what_was_popular() {
    let before = zipf(1, 64, 4, 2000);
    let mut trace = before.clone();
    trace.extend(before.iter().map(|it| key(1, it.expert.idx())));
    let n_hits = replay(&trace, 16, CachePolicy::Frequency);
    let n_hits_before = replay(&before, 16, CachePolicy::Frequency);
    assert!(n_hits * 100 > n_hits_before * 190, "{n_hits} after {n_hits_before}");
}

#[test]
fn lru_agrees_with_its_definition() {
    let trace = zipf(2, 16, 3, 200);
    for n_slots in [1, 2, 5, 9, 31, 32] {
        let mut recent: Vec<ExpertKey> = Vec::new();
        let mut n_hits = 0;
        for &key in &trace {
            if let Some(found) = recent.iter().position(|&it| it == key) {
                recent.remove(found);
                n_hits += 1;
            }
            recent.push(key);
            if recent.len() > n_slots {
                recent.remove(0);
            }
        }
        assert_eq!(replay(&trace, n_slots, CachePolicy::Lru), n_hits, "{n_slots} slots");
    }
}

#[test]
fn every_policy_hits_always_when_everything_fits_and_never_without_slots() {
    let trace = zipf(2, 16, 3, 100);
    for choice in [CachePolicy::Lru, CachePolicy::Frequency, CachePolicy::Score] {
        let mut distinct = trace.clone();
        distinct.sort();
        distinct.dedup();
        let n_first = distinct.len() as u64;
        assert_eq!(replay(&trace, distinct.len(), choice), trace.len() as u64 - n_first);
        assert_eq!(replay(&trace, 0, choice), 0);
        assert_eq!(replay(&[], 4, choice), 0);
    }
}

#[test]
fn a_victim_is_resident_and_may_leave() {
    for choice in [CachePolicy::Lru, CachePolicy::Frequency, CachePolicy::Score] {
        let mut policy = policy(choice, 8);
        assert_eq!(policy.victim(&|_| true), None);
        for expert in [3, 1, 4, 5].map(Ordinal) {
            policy.touched(expert, 1.0);
            policy.inserted(expert);
        }
        policy.touched(Ordinal(3), 1.0);
        policy.touched(Ordinal(7), 1.0);
        assert_eq!(policy.victim(&|_| true), Some(Ordinal(1)), "{choice:?}");
        assert_eq!(policy.victim(&|it| it != Ordinal(1)), Some(Ordinal(4)), "{choice:?}");
        assert_eq!(policy.victim(&|it| it == Ordinal(7)), None, "{choice:?}");
        policy.removed(Ordinal(1));
        assert_eq!(policy.victim(&|_| true), Some(Ordinal(4)), "{choice:?}");
    }
}

#[test]
fn what_many_rows_want_stays_longer() {
    let mut policy = policy(CachePolicy::Frequency, 4);
    for (expert, n_rows) in [(0, 9.0), (1, 2.0), (2, 5.0)] {
        policy.touched(Ordinal(expert), n_rows);
        policy.inserted(Ordinal(expert));
    }
    assert_eq!(policy.victim(&|_| true), Some(Ordinal(1)));
    policy.scored(Ordinal(1), 100.0);
    assert_eq!(policy.victim(&|_| true), Some(Ordinal(1)), "scores do not count here");
}

#[test]
fn what_was_nearly_chosen_stays_longer() {
    let mut policy = policy(CachePolicy::Score, 4);
    for expert in [0, 1, 2].map(Ordinal) {
        policy.touched(expert, 1.0);
        policy.inserted(expert);
    }
    assert!(policy.wants_scores());
    policy.scored(Ordinal(0), 0.4);
    policy.scored(Ordinal(2), 0.1);
    policy.scored(Ordinal(1), f32::NAN);
    assert_eq!(policy.victim(&|_| true), Some(Ordinal(1)));
}

#[test]
fn weights_survive_in_another_policy() {
    let mut before = policy(CachePolicy::Frequency, 8);
    for (expert, n_rows) in [(3, 7.0), (5, 1.0), (1, 3.0)] {
        before.touched(Ordinal(expert), n_rows);
    }
    let weights = before.weights().unwrap();
    assert!(weights[3] > weights[1] && weights[1] > weights[5] && weights[0] == 0.0);
    let mut after = policy(CachePolicy::Score, 8);
    after.restore(&weights);
    [5, 3, 1].map(Ordinal).into_iter().for_each(|it| after.inserted(it));
    assert_eq!(after.victim(&|_| true), Some(Ordinal(5)));
    assert_eq!(policy(CachePolicy::Lru, 8).weights(), None);
}
