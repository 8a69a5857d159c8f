//! This binary as the child process that renders chat templates.

use std::io;
use std::process::Command;

/// The only argument of such a child; no command and no flag begins so.
const ARGUMENT: &str = "@render-chat-templates";

/// Whether this process was started as such a child.
pub(crate) fn is_wanted() -> bool {
    std::env::args_os().nth(1).is_some_and(|argument| argument == ARGUMENT)
}

/// How such a child is started.
pub(crate) fn command() -> io::Result<Command> {
    let mut command = Command::new(own_path()?);
    command.arg(ARGUMENT);
    Ok(command)
}

/// Leads to this binary even after an update has replaced its file.
#[cfg(target_os = "linux")]
fn own_path() -> io::Result<std::path::PathBuf> {
    Ok("/proc/self/exe".into())
}

#[cfg(not(target_os = "linux"))]
fn own_path() -> io::Result<std::path::PathBuf> {
    std::env::current_exe()
}
