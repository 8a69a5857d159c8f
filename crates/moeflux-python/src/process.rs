//! The process that a model belongs to, and the children that render chat templates for it.

use std::ffi::OsString;
use std::io;
use std::mem;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use moeflux_core::call_options;
use pyo3::prelude::*;

use crate::error::{Failure, write_keyword};

/// The process that has opened a model first; 0 before.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// How the program of this package is started.
static PROGRAM: OnceLock<Vec<OsString>> = OnceLock::new();

const FORKED: &str = "this process was forked from one that had loaded a model, whose threads did not come with \
                      it: load the model here and only here, or start processes by the method \"spawn\" \
                      (multiprocessing.get_context(\"spawn\"))";

/// Notes that this process has models.
///
/// # Errors
/// Where it was forked from one that had.
pub(crate) fn claim() -> Result<(), Failure> {
    call_options(write_keyword);
    let own = std::process::id();
    match OWNER.compare_exchange(0, own, Ordering::SeqCst, Ordering::SeqCst) {
        Err(owner) if owner != own => Err(Failure::new("process", FORKED)),
        _ => Ok(()),
    }
}

/// A value of the process that made it. In one that was forked it is out of reach, and is not dropped: dropping
/// waits for threads that are not there.
pub(crate) struct Owned<T> {
    process: u32,
    /// Absent while it is dropped.
    value: Option<T>,
}

impl<T> Owned<T> {
    pub(crate) fn new(value: T) -> Owned<T> {
        Owned { process: std::process::id(), value: Some(value) }
    }

    /// The value.
    ///
    /// # Errors
    /// Where this process was forked since.
    pub(crate) fn get(&self) -> Result<&T, Failure> {
        let here = self.value.as_ref().filter(|_| self.process == std::process::id());
        here.ok_or_else(|| Failure::new("process", FORKED))
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            mem::forget(self.value.take());
        }
    }
}

/// Has chat templates rendered in child processes, which `program` starts: its first part is a program, the others
/// are arguments of it. The first call counts.
#[pyfunction]
pub(crate) fn render_in_children(program: Vec<OsString>) {
    set_program(program);
    moeflux_cli::render_in_children(again);
}

/// Sets how the program of this package is started. The first call counts.
pub(crate) fn set_program(program: Vec<OsString>) {
    PROGRAM.get_or_init(|| program);
}

/// The program of this package, which takes the arguments of the command `moeflux`.
pub(crate) fn again() -> io::Result<Command> {
    let (program, arguments) = PROGRAM
        .get()
        .and_then(|words| words.split_first())
        .ok_or_else(|| io::Error::other("no interpreter of Python is known to start"))?;
    let mut command = Command::new(program);
    command.args(arguments);
    Ok(command)
}
