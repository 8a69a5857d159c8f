//! The `moeflux` binary.

use std::io;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    ExitCode::from(moeflux_cli::run_program(std::env::args_os().collect(), again))
}

/// This binary, even after an update has replaced its file.
fn again() -> io::Result<Command> {
    let path = std::env::current_exe()?;
    if cfg!(target_os = "linux") && !path.exists() {
        return Ok(Command::new("/proc/self/exe"));
    }
    Ok(Command::new(path))
}
