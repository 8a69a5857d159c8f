//! The rule of admission.

use moeflux_core::ExpertId;
use proptest::prelude::*;

use crate::{Admission, Admitted};

fn ids(ids: &[u16]) -> Vec<ExpertId> {
    ids.iter().copied().map(ExpertId).collect()
}

/// A layer of `n_experts` with its first ones in `n_slots` slots.
fn layer(n_experts: u16, n_slots: u16) -> Admission {
    Admission::new(usize::from(n_experts), (0..n_slots).map(ExpertId))
}

#[test]
fn what_is_chosen_least_often_leaves() {
    let mut layer = layer(6, 3);
    assert_eq!(layer.admit(&ids(&[0, 1])), []);
    assert_eq!(layer.admit(&ids(&[1, 2])), []);
    // Expert 0 was chosen once and long ago, 2 once, 1 twice.
    let admitted = layer.admit(&ids(&[4, 1]));
    assert_eq!(admitted, [Admitted { expert: ExpertId(4), slot: 0, evicted: ExpertId(0) }]);
    let admitted = layer.admit(&ids(&[5, 1]));
    assert_eq!(admitted, [Admitted { expert: ExpertId(5), slot: 2, evicted: ExpertId(2) }]);
    assert_eq!(layer.slot_of(ExpertId(0)), None);
    assert_eq!(layer.slot_of(ExpertId(5)), Some(2));
}

#[test]
fn of_equal_experts_the_one_in_the_first_slot_leaves() {
    let mut layer = layer(8, 4);
    let slots: Vec<usize> =
        layer.admit(&ids(&[6, 4, 6, 5])).iter().map(|admitted| admitted.slot).collect();
    assert_eq!(slots, [0, 1, 2]);
    assert_eq!(layer.slot_of(ExpertId(6)), Some(0), "in the order of choices");
}

#[test]
fn what_was_chosen_often_outlasts_what_came_once_but_not_for_ever() {
    let mut layer = layer(40, 4);
    for _ in 0..8 {
        layer.admit(&ids(&[3]));
    }
    let mut n_steps = 0;
    for expert in 4..40 {
        layer.admit(&ids(&[expert]));
        if layer.slot_of(ExpertId(3)).is_none() {
            break;
        }
        n_steps += 1;
    }
    assert!(n_steps > 8, "it left after {n_steps} steps");
    // A count halves every 160 choices of 40 experts: others have to be chosen meanwhile.
    for step in 0..2000 {
        layer.admit(&ids(&[10 + step % 8]));
    }
    assert_eq!(layer.slot_of(ExpertId(3)), None);
}

#[test]
fn the_words_are_those_that_kernels_read() {
    let mut layer = layer(3, 2);
    layer.admit(&ids(&[2]));
    let one = 1.0_f32.to_bits();
    let slots = [u32::MAX, 1, 0];
    let (counts, counted_at, experts) = ([0, 0, one], [0, 0, 1], [2, 1]);
    let want = [&[1][..], &slots, &counts, &counted_at, &experts].concat();
    assert_eq!(layer.words(), want);
}

proptest! {
    #[test]
    fn slots_and_experts_agree_and_a_step_keeps_what_it_chose(
        n_slots in 4..10_u16,
        n_more in 0..12_u16,
        steps in prop::collection::vec(prop::collection::vec(any::<u16>(), 1..5), 1..60),
    ) {
        let n_experts = n_slots + n_more;
        let mut layer = layer(n_experts, n_slots);
        let mut in_slots: Vec<ExpertId> = (0..n_slots).map(ExpertId).collect();
        for chosen in steps {
            let chosen: Vec<_> = chosen.iter().map(|id| ExpertId(id % n_experts)).collect();
            let before = in_slots.clone();
            for Admitted { expert, slot, evicted } in layer.admit(&chosen) {
                prop_assert!(!before.contains(&expert), "it had no slot");
                prop_assert_eq!(in_slots[slot], evicted);
                prop_assert!(!chosen.contains(&evicted), "a step keeps what it chose");
                in_slots[slot] = expert;
            }
            prop_assert!(chosen.iter().all(|expert| in_slots.contains(expert)));
            for expert in (0..n_experts).map(ExpertId) {
                let slot = in_slots.iter().position(|held| *held == expert);
                prop_assert_eq!(layer.slot_of(expert), slot);
            }
        }
    }
}
