//! The budget with simulated readings of memory.

use std::time::Duration;

use proptest::prelude::*;

use crate::headroom;
use crate::memory::{Controller, Reading};

const MIB: u64 = 1 << 20;

/// A machine on which the cache shares the memory with other processes.
struct Machine {
    total: u64,
    used: u64,
    controller: Controller,
}

impl Machine {
    fn new(total: u64, min: u64, planned: u64) -> Machine {
        Machine { total, used: 0, controller: Controller::new(min, planned, total / 10) }
    }

    /// One tick: the cache fills its budget, or frees the memory beyond it.
    fn tick(&mut self, others: u64, is_stalled: bool) -> u64 {
        let available = self.total.saturating_sub(others + self.used);
        let elapsed = Duration::from_millis(250);
        let reading = Reading { available, used: self.used, is_stalled, elapsed };
        let budget = self.controller.next(reading);
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
    // The other processes end: nothing happens for some time, then the cache grows by steps.
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

/// Simulates a process that takes `burst` bytes at `rate` bytes per second. The cache leaves its
/// headroom free. Readings are late by `delay`, and slots are freed that much later. Returns the
/// least number of bytes that was free.
fn least_free(available: u64, burst: u64, rate: f64, delay: Duration) -> i64 {
    let planned = available - headroom(available);
    let mut controller = Controller::new(0, planned, headroom(available));
    let (mut others, mut used, mut least) = (0u64, planned, i64::MAX);
    let mut pause = controller.pause(headroom(available), planned);
    for _ in 0..2000 {
        let elapsed = pause + delay;
        others = burst.min(others + (rate * elapsed.as_secs_f64()) as u64);
        let free = available.cast_signed() - (others + used).cast_signed();
        least = least.min(free);
        let free = u64::try_from(free).unwrap_or(0);
        let budget = controller.next(Reading { available: free, used, is_stalled: false, elapsed });
        // Memory that is taken while slots are freed.
        others = burst.min(others + (rate * delay.as_secs_f64()) as u64);
        least = least.min(available.cast_signed() - (others + used).cast_signed());
        used = used.min(budget);
        pause = controller.pause(free, used);
    }
    least
}

#[test]
fn a_burst_finds_memory_free_at_the_speed_of_the_kernel() {
    for (available, burst) in [(1600, 900), (1600, 1200), (20_000, 15_000), (1000, 700)] {
        for delay in [Duration::from_millis(1), Duration::from_millis(8)] {
            let least = least_free(available * MIB, burst * MIB, 3e9, delay);
            assert!(least > 0, "{burst} of {available} MiB, {delay:?} late: {least} bytes free");
        }
    }
}

#[test]
fn the_headroom_is_a_tenth_or_enough_for_a_burst() {
    for (available, want) in [(60, 10), (1536, 256), (2000, 256), (10_000, 1000)] {
        assert_eq!(headroom(available * MIB), want * MIB, "{available} MiB");
    }
}

#[test]
fn looks_come_before_others_can_have_filled_what_is_free() {
    let controller = Controller::new(10 * MIB, 900 * MIB, 256 * MIB);
    let pause = |available: u64, used: u64| controller.pause(available * MIB, used * MIB);
    assert_eq!(pause(100, 900), Duration::from_millis(2));
    assert!((6..10).contains(&pause(256, 900).as_millis()));
    assert_eq!(pause(20_000, 900), Duration::from_millis(250));
    // The cache cannot free any memory.
    assert!(pause(100, 10) > Duration::from_millis(20));
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
        // With a steady load the budget moves in one direction, and stops.
        let others = (total as f64 * last) as u64;
        let budgets: Vec<u64> = (0..200).map(|_| machine.tick(others, false)).collect();
        let rises = budgets.windows(2).any(|pair| pair[1] > pair[0]);
        let falls = budgets.windows(2).any(|pair| pair[1] < pair[0]);
        prop_assert!(!(rises && falls), "{:?}", budgets);
        prop_assert_eq!(budgets[198], budgets[199]);
        let free = total.saturating_sub(others + machine.used);
        prop_assert!(free >= total / 10 / 2 || machine.used == min);
    }
}
