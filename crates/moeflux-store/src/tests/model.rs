//! Random sequences of calls, checked against the guarantees of a store.

use std::sync::Arc;

use proptest::prelude::*;

use super::bank::{Shape, listed, packed, stacked};
use super::*;
use crate::StoreError;

const N_EXPERTS: u16 = 6;

#[derive(Clone, Debug)]
enum Call {
    /// Requests experts and keeps the first `n_kept` of them.
    Fetch {
        layer: u16,
        experts: Vec<u16>,
        n_kept: usize,
    },
    /// Requests experts and drops the request after `n_batches`.
    GiveUp {
        layer: u16,
        experts: Vec<u16>,
        n_batches: usize,
    },
    Prefetch {
        layer: u16,
        experts: Vec<u16>,
    },
    PrefetchMany {
        layer: u16,
        experts: Vec<u16>,
    },
    PrefetchAll(u16),
    /// Restores the weights that the policy itself has learned.
    Restore,
    BeginLayer(u16),
    Record {
        layer: u16,
        experts: Vec<u16>,
    },
    Forget,
    /// Drops the expert that has been held longest.
    Drop(usize),
}

fn shape() -> [Shape; 3] {
    [packed(N_EXPERTS), stacked(N_EXPERTS), listed(N_EXPERTS)]
}

fn experts() -> impl Strategy<Value = Vec<u16>> {
    let all: Vec<u16> = (0..N_EXPERTS).collect();
    proptest::sample::subsequence(all, 0..=usize::from(N_EXPERTS)).prop_shuffle()
}

fn call() -> impl Strategy<Value = Call> {
    let layer = 0u16..3;
    prop_oneof![
        4 => (layer.clone(), experts(), 0usize..3)
            .prop_map(|(layer, experts, n_kept)| Call::Fetch { layer, experts, n_kept }),
        1 => (layer.clone(), experts(), 0usize..3)
            .prop_map(|(layer, experts, n_batches)| Call::GiveUp { layer, experts, n_batches }),
        2 => (layer.clone(), experts())
            .prop_map(|(layer, experts)| Call::Prefetch { layer, experts }),
        1 => (layer.clone(), experts())
            .prop_map(|(layer, experts)| Call::PrefetchMany { layer, experts }),
        1 => layer.clone().prop_map(Call::PrefetchAll),
        1 => Just(Call::Restore),
        1 => layer.clone().prop_map(Call::BeginLayer),
        1 => (layer, experts()).prop_map(|(layer, experts)| Call::Record { layer, experts }),
        1 => Just(Call::Forget),
        3 => (0usize..4).prop_map(Call::Drop),
    ]
}

/// Makes one call. Drops held experts, so that `held` stays below the number of slots.
fn serve(store: &ExpertStore, held: &mut Vec<Arc<Expert>>, call: &Call) {
    match call {
        Call::Fetch { layer, experts, n_kept } => {
            let mut arrivals = store.request(LayerIdx(*layer), &ids(experts));
            let mut seen = vec![false; experts.len()];
            loop {
                match arrivals.next_batch() {
                    Ok(None) => break,
                    Ok(Some(batch)) => {
                        for (index, expert) in batch {
                            assert_eq!(expert.key.expert.0, experts[index]);
                            assert_eq!(expert.key.layer.0, *layer);
                            check_bytes(&expert);
                            assert!(!std::mem::replace(&mut seen[index], true));
                            if index < *n_kept {
                                held.push(expert);
                            }
                        }
                    }
                    Err(StoreError::SlotsHeld { .. }) => {
                        assert!(!held.is_empty(), "a caller should hold the slots");
                        held.remove(0);
                    }
                    Err(err) => panic!("{err}"),
                }
            }
            assert!(seen.iter().all(|&is_seen| is_seen), "every expert should arrive");
        }
        Call::GiveUp { layer, experts, n_batches } => {
            let mut arrivals = store.request(LayerIdx(*layer), &ids(experts));
            for _ in 0..*n_batches {
                if !matches!(arrivals.next_batch(), Ok(Some(_))) {
                    break;
                }
            }
        }
        Call::Prefetch { layer, experts } => store.prefetch(LayerIdx(*layer), &ids(experts)),
        Call::PrefetchMany { layer, experts } => {
            store.prefetch_many(LayerIdx(*layer), &ids(experts));
        }
        Call::PrefetchAll(layer) => store.prefetch_all(LayerIdx(*layer)),
        Call::Restore => {
            if let Some(learned) = store.learned() {
                store.restore(&learned);
            }
        }
        Call::BeginLayer(layer) => store.begin_layer(LayerIdx(*layer)),
        Call::Record { layer, experts } => store.record(LayerIdx(*layer), &ids(experts)),
        Call::Forget => store.forget_predictions(),
        Call::Drop(n_dropped) => drop(held.drain(..(*n_dropped).min(held.len()))),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_called_the_bytes_are_right_and_the_budget_holds(
        calls in proptest::collection::vec(call(), 1..60),
        n_slots in 1u64..12,
        n_readers in 1usize..4,
        policy in proptest::sample::select(vec![CachePolicy::Lru, CachePolicy::Frequency]),
        is_direct in any::<bool>(),
        top_k in 1usize..3,
    ) {
        let top_k = top_k.min(usize::try_from(n_slots).unwrap());
        let prefetch = Prefetch::LastToken;
        let mode = if is_direct { IoMode::Direct } else { IoMode::Pread };
        let options = StoreOptions { policy, n_readers, top_k, prefetch, ..options(mode) };
        let Fixture { dir: _dir, store, .. } = fixture(&shape(), n_slots, options);
        let mut held = Vec::new();
        for call in &calls {
            serve(&store, &mut held, call);
            held.iter().for_each(|expert: &Arc<Expert>| check_bytes(expert));
            let stats = store.stats();
            prop_assert!(stats.resident <= stats.n_slots);
            prop_assert!(stats.prefetch_used <= stats.prefetch_reads);
        }
        held.clear();
        // No slot was lost: all of them can be used at once.
        let n_all = store.stats().n_slots.min(usize::from(N_EXPERTS));
        let all: Vec<u16> = (0..N_EXPERTS).take(n_all).collect();
        prop_assert_eq!(fetch(&store, 0, &all).len(), n_all);
    }
}
