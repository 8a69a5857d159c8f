//! The budget under made-up readings of memory.

use proptest::prelude::*;

use crate::pressure::{Controller, Reading};

/// A machine whose memory the cache shares with others.
struct Machine {
    total: u64,
    used: u64,
    controller: Controller,
}

impl Machine {
    fn new(total: u64, min: u64, planned: u64) -> Machine {
        Machine { total, used: 0, controller: Controller::new(min, planned, total) }
    }

    /// One tick: the cache fills what it may take, or gives up what it may not.
    fn tick(&mut self, others: u64, is_stalled: bool) -> u64 {
        let available = self.total.saturating_sub(others + self.used);
        let budget = self.controller.next(Reading { available, used: self.used, is_stalled });
        self.used = budget;
        budget
    }
}

#[test]
fn a_cache_as_planned_stays_as_planned() {
    let mut machine = Machine::new(1000, 10, 900);
    for _ in 0..100 {
        assert_eq!(machine.tick(0, false), 900);
    }
}

#[test]
fn it_shrinks_at_once_and_grows_slowly_to_what_was_planned() {
    let mut machine = Machine::new(1000, 10, 900);
    machine.tick(0, false);
    assert!(machine.tick(400, false) < 850);
    for _ in 0..9 {
        machine.tick(400, false);
    }
    let shrunk = machine.used;
    assert!((500..=530).contains(&shrunk), "{shrunk}");
    for _ in 0..15 {
        assert_eq!(machine.tick(400, false), shrunk);
    }
    // The others go: nothing happens for some time, then it grows by steps.
    for _ in 0..20 {
        assert_eq!(machine.tick(0, false), shrunk);
    }
    let grown = machine.tick(0, false);
    assert!(shrunk < grown && grown <= shrunk + 30, "{grown}");
    for _ in 0..40 {
        machine.tick(0, false);
    }
    assert_eq!(machine.used, 900);
}

#[test]
fn tasks_that_wait_for_memory_make_it_shrink_sooner() {
    let mut machine = Machine::new(1000, 10, 900);
    machine.tick(0, false);
    assert_eq!(machine.tick(20, false), 900);
    assert!(machine.tick(20, true) < 900);
}

proptest! {
    #[test]
    fn it_stays_within_its_bounds_and_comes_to_rest(
        total in 1_000u64..1 << 40,
        min_share in 0.0f64..0.5,
        loads in proptest::collection::vec((0.0f64..1.2, any::<bool>()), 1..50),
        last in 0.0f64..1.2,
    ) {
        let planned = total / 10 * 9;
        let min = (total as f64 * min_share) as u64;
        let mut machine = Machine::new(total, min, planned);
        for (load, is_stalled) in loads {
            let budget = machine.tick((total as f64 * load) as u64, is_stalled);
            prop_assert!((min..=planned).contains(&budget));
        }
        // Under a steady load it moves in one direction, and stops.
        let others = (total as f64 * last) as u64;
        let budgets: Vec<u64> = (0..200).map(|_| machine.tick(others, false)).collect();
        let rises = budgets.windows(2).any(|it| it[1] > it[0]);
        let falls = budgets.windows(2).any(|it| it[1] < it[0]);
        prop_assert!(!(rises && falls), "{:?}", budgets);
        prop_assert_eq!(budgets[198], budgets[199]);
        let free = total.saturating_sub(others + machine.used);
        prop_assert!(free >= total / 10 / 2 || machine.used == min);
    }
}
