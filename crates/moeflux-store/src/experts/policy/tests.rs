//! Policies scored on traces, without a drive.

use moeflux_core::SplitMix64;

use super::*;
use crate::experts::plan::Ordinal;

/// Layers of the caches on which requests are replayed.
const LAYERS: usize = 8;

fn ordinal(layer: usize, expert: usize, n_experts: usize) -> Ordinal {
    Ordinal(u32::try_from(layer * n_experts + expert).unwrap())
}

/// Requests of one layer each, with ascending experts.
type Requests = Vec<Vec<Ordinal>>;

/// Tokens that choose experts by Zipf's law, layer by layer; with `bend` 0 all
/// are equally likely.
fn zipf(
    layers: std::ops::Range<usize>,
    n_experts: usize,
    top_k: usize,
    n_tokens: usize,
    bend: usize,
) -> Requests {
    let mut random = SplitMix64::new(1);
    let shares: Vec<usize> = (0..n_experts).map(|rank| 1_000_000 / (bend * rank + 1)).collect();
    let whole: usize = shares.iter().sum();
    let mut trace = Vec::new();
    for layer in (0..n_tokens).flat_map(|_| layers.clone()) {
        let mut chosen: Vec<Ordinal> = Vec::new();
        while chosen.len() < top_k {
            let mut point = random.below(whole);
            let rank = shares.iter().position(|&share| {
                let is_here = point < share;
                point = point.saturating_sub(share);
                is_here
            });
            let expert = ordinal(layer, (rank.unwrap() * 7 + layer * 3) % n_experts, n_experts);
            if !chosen.contains(&expert) {
                chosen.push(expert);
            }
        }
        chosen.sort();
        trace.push(chosen);
    }
    trace
}

/// Hits of a cache on requests, one after another.
fn replay(trace: &Requests, n_experts: usize, n_slots: usize, choice: CachePolicy) -> u64 {
    let mut cache = crate::replay::Cache::new(choice, &[n_experts; LAYERS], n_slots);
    let wanted =
        |list: &Vec<Ordinal>| list.iter().map(|&ordinal| (ordinal, 1.0)).collect::<Vec<_>>();
    trace.iter().map(|request| cache.request_all(&wanted(request))).sum()
}

/// The share of hits, in per mille.
fn per_mille(trace: &Requests, n_experts: usize, n_slots: usize, choice: CachePolicy) -> u64 {
    let n_wanted: usize = trace.iter().map(Vec::len).sum();
    replay(trace, n_experts, n_slots, choice) * 1000 / n_wanted as u64
}

#[test]
fn frequency_beats_recency_on_skewed_routing() {
    let trace = zipf(0..6, 32, 4, 400, 1);
    for share in [8, 4, 2] {
        let n_slots = 6 * 32 / share;
        let lru = per_mille(&trace, 32, n_slots, CachePolicy::Lru);
        let frequency = per_mille(&trace, 32, n_slots, CachePolicy::Frequency);
        assert!(frequency > lru + 30, "1/{share}: {frequency} to {lru}");
    }
}

#[test]
fn what_a_step_wants_anyway_leaves_when_its_layer_was_just_there() {
    // A request uses seven of eight experts. Without regard to the turns of layers, the evicted
    // experts would be those that the next layer uses.
    let trace = zipf(0..5, 8, 7, 200, 0);
    let lru = per_mille(&trace, 8, 20, CachePolicy::Lru);
    let frequency = per_mille(&trace, 8, 20, CachePolicy::Frequency);
    assert!(lru < 50 && frequency > 350, "{frequency} to {lru}");
}

#[test]
fn frequency_forgets_what_was_popular() {
    let before = zipf(0..1, 64, 4, 2000, 1);
    let mut trace = before.clone();
    trace.extend(before.iter().map(|request| {
        let mut moved: Vec<Ordinal> =
            request.iter().map(|ordinal| Ordinal((ordinal.0 + 31) % 64)).collect();
        moved.sort();
        moved
    }));
    let n_hits = replay(&trace, 64, 16, CachePolicy::Frequency);
    let n_hits_before = replay(&before, 64, 16, CachePolicy::Frequency);
    assert!(n_hits * 100 > n_hits_before * 190, "{n_hits} after {n_hits_before}");
}

#[test]
fn lru_agrees_with_its_definition() {
    let requests = zipf(0..2, 16, 3, 200, 1);
    let trace: Requests = requests.into_iter().flatten().map(|request| vec![request]).collect();
    for n_slots in [1, 2, 5, 9, 31, 32] {
        let mut recent: Vec<Ordinal> = Vec::new();
        let mut n_hits = 0;
        for key in trace.iter().flatten() {
            if let Some(found) = recent.iter().position(|known| known == key) {
                recent.remove(found);
                n_hits += 1;
            }
            recent.push(*key);
            if recent.len() > n_slots {
                recent.remove(0);
            }
        }
        assert_eq!(replay(&trace, 16, n_slots, CachePolicy::Lru), n_hits, "{n_slots} slots");
    }
}

#[test]
fn every_policy_hits_always_when_everything_fits_and_never_without_slots() {
    let trace = zipf(0..2, 16, 3, 100, 1);
    for choice in [CachePolicy::Lru, CachePolicy::Frequency] {
        let mut distinct: Vec<Ordinal> = trace.iter().flatten().copied().collect();
        let n_wanted = distinct.len() as u64;
        distinct.sort();
        distinct.dedup();
        let n_first = distinct.len() as u64;
        assert_eq!(replay(&trace, 16, distinct.len(), choice), n_wanted - n_first);
        assert_eq!(replay(&trace, 16, 0, choice), 0);
        assert_eq!(replay(&Vec::new(), 16, 4, choice), 0);
    }
}

#[test]
fn a_victim_is_resident_and_may_leave() {
    for choice in [CachePolicy::Lru, CachePolicy::Frequency] {
        let mut policy = policy(choice, &[8]);
        assert_eq!(policy.victim(&|_| true), None);
        for expert in [3, 1, 4, 5].map(Ordinal) {
            policy.touched(expert, 1.0);
            policy.inserted(expert);
        }
        policy.touched(Ordinal(3), 1.0);
        policy.touched(Ordinal(7), 1.0);
        policy.asked();
        assert_eq!(policy.victim(&|_| true), Some(Ordinal(1)), "{choice:?}");
        assert_eq!(policy.victim(&|policy| policy != Ordinal(1)), Some(Ordinal(4)), "{choice:?}");
        assert_eq!(policy.victim(&|policy| policy == Ordinal(7)), None, "{choice:?}");
        policy.removed(Ordinal(1));
        assert_eq!(policy.victim(&|_| true), Some(Ordinal(4)), "{choice:?}");
    }
}

#[test]
fn what_many_rows_want_stays_longer() {
    let mut policy = policy(CachePolicy::Frequency, &[4]);
    for (expert, n_rows) in [(0, 9.0), (1, 2.0), (2, 5.0)] {
        policy.touched(Ordinal(expert), n_rows);
        policy.inserted(Ordinal(expert));
    }
    policy.asked();
    assert_eq!(policy.victim(&|_| true), Some(Ordinal(1)));
}

#[test]
fn of_experts_used_as_often_the_one_whose_layer_comes_last_leaves() {
    let mut policy = policy(CachePolicy::Frequency, &[4, 4, 4]);
    for (first, second) in [(0, 1), (4, 5), (8, 9)] {
        policy.touched(Ordinal(first), 1.0);
        policy.touched(Ordinal(second), 1.0);
        policy.asked();
        policy.inserted(Ordinal(first));
    }
    assert_eq!(policy.victim(&|_| true), Some(Ordinal(8)));
    policy.touched(Ordinal(1), 1.0);
    policy.touched(Ordinal(2), 1.0);
    policy.asked();
    // The first layer was requested last, and its resident expert was not used.
    assert_eq!(policy.victim(&|_| true), Some(Ordinal(0)));
    policy.removed(Ordinal(0));
    assert_eq!(policy.victim(&|_| true), Some(Ordinal(8)));
    // Never used: its distance is greater than any other's.
    policy.inserted(Ordinal(7));
    assert_eq!(policy.victim(&|_| true), Some(Ordinal(7)));
}

#[test]
fn weights_survive_in_another_policy() {
    let mut before = policy(CachePolicy::Frequency, &[4, 4]);
    for (expert, n_rows) in [(5, 7.0), (7, 1.0), (6, 3.0)] {
        before.touched(Ordinal(expert), n_rows);
    }
    before.asked();
    let weights = before.weights().unwrap();
    assert!(weights[5] > weights[6] && weights[6] > weights[7] && weights[0] == 0.0);
    let mut after = policy(CachePolicy::Frequency, &[4, 4]);
    after.restore(&weights);
    after.touched(Ordinal(0), 1.0);
    after.asked();
    [5, 7, 6].map(Ordinal).into_iter().for_each(|expert| after.inserted(expert));
    assert_eq!(after.victim(&|_| true), Some(Ordinal(7)));
    assert_eq!(policy(CachePolicy::Lru, &[8]).weights(), None);
}
