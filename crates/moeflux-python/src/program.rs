//! The command `moeflux` in a process of Python.

use std::ffi::OsString;

use pyo3::prelude::*;

use crate::process::{again, set_program};

/// Runs the command and returns its exit code. `arguments` begin with its name; `program` starts the same once more.
#[pyfunction]
pub(crate) fn run_program(py: Python<'_>, arguments: Vec<OsString>, program: Vec<OsString>) -> u8 {
    set_program(program);
    py.detach(|| moeflux_cli::run_program(arguments, again))
}
