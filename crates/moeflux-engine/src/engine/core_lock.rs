//! The lock of an engine's core, which threads get in turns.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::step::Core;

/// A core behind a lock that a thread gets before another one gets it twice: the scheduler, which
/// takes it for step after step, leaves it to the thread that loads experts in between.
pub(crate) struct CoreLock {
    /// Held while its holder waits for `core`.
    turn: Mutex<()>,
    core: Mutex<Core>,
}

impl CoreLock {
    pub(crate) fn new(core: Core) -> CoreLock {
        CoreLock { turn: Mutex::new(()), core: Mutex::new(core) }
    }

    /// The core. Sessions end with this lock, also while a panic unwinds; a step after one that
    /// panicked meets the backend's assertions.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
