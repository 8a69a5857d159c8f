//! Calls back to the caller, on its own thread and without a lock of the engine: a callback may call
//! whatever it likes.

use std::any::Any;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::status::{Fault, MOEFLUX_ERROR_CANCELLED};

/// Learns how much of some work is done. Called on the thread of the call that does the work. Any other
/// number than 0 ends the work, and the call returns `MOEFLUX_ERROR_CANCELLED`.
#[expect(non_camel_case_types, reason = "the name in C")]
pub type moeflux_progress =
    Option<unsafe extern "C" fn(user: *mut c_void, done: u64, total: u64) -> i32>;

/// A callback with its caller's own pointer.
pub(crate) struct Progress {
    callback: moeflux_progress,
    user: *mut c_void,
}

/// A callback asked to stop.
#[derive(Debug)]
pub(crate) struct Stopped;

impl Progress {
    /// # Safety
    /// Until the `Progress` is dropped, `callback` may be called with `user`.
    pub(crate) unsafe fn new(callback: moeflux_progress, user: *mut c_void) -> Progress {
        Progress { callback, user }
    }

    /// Calls back, where there is a callback.
    pub(crate) fn report(&mut self, done: u64, total: u64) -> Result<(), Stopped> {
        let Some(callback) = self.callback else { return Ok(()) };
        // SAFETY: the caller of `new` promised that it may be called so.
        let answer = unsafe { callback(self.user, done, total) };
        if answer == 0 { Ok(()) } else { Err(Stopped) }
    }
}

impl Stopped {
    /// Runs work that may unwind with a [`Stopped`].
    pub(crate) fn caught<T>(work: impl FnOnce() -> T) -> Result<T, Stopped> {
        catch_unwind(AssertUnwindSafe(work)).map_err(|payload: Box<dyn Any + Send>| {
            match payload.downcast::<Stopped>() {
                Ok(stopped) => *stopped,
                Err(payload) => resume_unwind(payload),
            }
        })
    }
}

impl From<Stopped> for Fault {
    fn from(_: Stopped) -> Fault {
        Fault::new(MOEFLUX_ERROR_CANCELLED, "the callback asked to stop")
    }
}
