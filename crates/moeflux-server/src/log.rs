//! Lines on standard error.

use std::io::{self, Write};

/// Writes a line.
pub(crate) fn log(text: &str) {
    // There is no other place to say that standard error is closed.
    let _ = writeln!(io::stderr(), "moeflux: {text}");
}
