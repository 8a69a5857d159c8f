//! Shares work among threads, and does without those that the system refuses to start; waits that
//! are too short to sleep.

use std::sync::{Mutex, PoisonError};
use std::thread;

/// Runs `work` on every item, on up to `n_threads` threads including the calling one. Returns the
/// results in the order of the items. If threads cannot be started, the others do their work.
///
/// # Panics
/// If `work` panics on an item; with the payload of that panic.
pub fn share_out<T: Send, R: Send>(
    n_threads: usize,
    items: Vec<T>,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    let n_items = items.len();
    let waiting = Mutex::new(items.into_iter().enumerate());
    let done = Mutex::new(Vec::with_capacity(n_items));
    let lend_a_hand = || {
        loop {
            let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((idx, item)) = next else { return };
            let result = work(item);
            done.lock().unwrap_or_else(PoisonError::into_inner).push((idx, result));
        }
    };
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for _ in 1..n_threads.min(n_items) {
            match thread::Builder::new().spawn_scoped(scope, lend_a_hand) {
                Ok(thread) => threads.push(thread),
                Err(_) => break,
            }
        }
        lend_a_hand();
        for thread in threads {
            if let Err(payload) = thread.join() {
                std::panic::resume_unwind(payload);
            }
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|(idx, _)| *idx);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Yields the core for about a microsecond, between two looks at what another thread does.
pub fn yield_briefly() {
    for _ in 0..32 {
        std::hint::spin_loop();
    }
    thread::yield_now();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_items() {
        for n_threads in [0, 1, 3, 50] {
            for n_items in [0, 1, 2, 30] {
                let got = share_out(n_threads, (0..n_items).collect(), |item| item * item);
                assert_eq!(got, (0..n_items).map(|item| item * item).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    #[should_panic(expected = "the fifth")]
    fn a_panic_reaches_the_caller() {
        share_out(2, (0..9).collect(), |item| assert!(item != 4, "the fifth"));
    }
}
