//! Locks whose values are valid after every statement, so that a panic spoils none.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The value of a lock, also after a panic.
pub(super) fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}
