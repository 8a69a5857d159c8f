//! Lines on standard error.

use std::io::{self, IsTerminal, Write};

use moeflux_core::visible;

/// Writes a line.
pub(crate) fn log(text: &str) {
    let mut out = io::stderr();
    let text = if out.is_terminal() { visible(text) } else { text.into() };
    // There is no other place to say that standard error is closed.
    let _ = writeln!(out, "moeflux: {text}");
}
