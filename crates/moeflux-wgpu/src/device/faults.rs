//! Errors that the device reports asynchronously.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Errors that the device reported and that no read-back has returned yet.
#[derive(Debug, Default)]
pub(super) struct Faults(Mutex<FaultState>);

#[derive(Debug, Default)]
pub(super) struct FaultState {
    /// Stays: nothing works after it.
    pub(super) lost: Option<String>,
}

impl Faults {
    pub(super) fn lock(&self) -> MutexGuard<'_, FaultState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lose(&self, reason: String) {
        self.lock().lost.get_or_insert(reason);
    }
}

pub(super) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
