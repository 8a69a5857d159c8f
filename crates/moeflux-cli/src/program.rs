//! How this program starts itself once more.

use std::io;
use std::process::Command;
use std::sync::OnceLock;

/// Starts this program in another process; the caller adds the arguments.
pub type StartAgain = fn() -> io::Result<Command>;

static START: OnceLock<StartAgain> = OnceLock::new();

/// Sets how. The first call counts.
pub(crate) fn set(start: StartAgain) {
    START.get_or_init(|| start);
}

/// This program, without arguments.
pub(crate) fn again() -> io::Result<Command> {
    match START.get() {
        Some(start) => start(),
        None => Err(io::Error::other("this program does not know how it was started")),
    }
}
