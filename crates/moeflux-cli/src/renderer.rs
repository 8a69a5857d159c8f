//! This program as the child process that renders chat templates.

use std::ffi::OsString;
use std::io;
use std::process::Command;

use moeflux_text::render_in_children;

use crate::program;

/// The only argument of such a child; no command and no flag begins so.
const ARGUMENT: &str = "@render-chat-templates";

/// Whether this process was started as such a child.
pub(crate) fn is_wanted(arguments: &[OsString]) -> bool {
    arguments.get(1).is_some_and(|argument| argument == ARGUMENT)
}

/// Has chat templates rendered in such children.
pub(crate) fn use_children() {
    render_in_children(command);
}

fn command() -> io::Result<Command> {
    let mut command = program::again()?;
    command.arg(ARGUMENT);
    Ok(command)
}
