//! The agent's process: it gets the signals that a terminal sends.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use super::agent::{Setup, Value};

/// Between two looks at the agent.
const TICK: Duration = Duration::from_millis(20);

/// Runs the agent to its end; its exit code, which is 128 and the signal's number where one ended
/// it.
pub(super) fn run(program: &Path, setup: &Setup, key: &str, args: &[OsString]) -> Result<u8> {
    let signals = Signals::register()?;
    let mut command = Command::new(program);
    command.args(&setup.args).args(args);
    for name in setup.removed {
        command.env_remove(name);
    }
    for (name, value) in &setup.variables {
        match value {
            Value::Text(text) => command.env(name, text),
            Value::Key => command.env(name, key),
        };
    }
    let mut child = command.spawn().with_context(|| format!("cannot run {}", program.display()))?;
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for the agent")? {
            return Ok(code(status));
        }
        signals.forward(&child);
        std::thread::sleep(TICK);
    }
}

/// Signals that came to this process while the agent runs: they do not end it.
struct Signals {
    interrupt: Arc<AtomicBool>,
    terminate: Arc<AtomicBool>,
}

impl Signals {
    fn register() -> Result<Signals> {
        let signals = Signals { interrupt: Arc::default(), terminate: Arc::default() };
        let all = [(SIGINT, &signals.interrupt), (SIGTERM, &signals.terminate)];
        for (signal, flag) in all {
            flag::register(signal, Arc::clone(flag)).context("cannot handle signals")?;
        }
        Ok(signals)
    }

    /// Passes on what the agent has not got by itself: a terminal sends Ctrl-C to both.
    fn forward(&self, child: &Child) {
        if self.interrupt.swap(false, Ordering::SeqCst) && !std::io::stdin().is_terminal() {
            send(child, SIGINT);
        }
        if self.terminate.swap(false, Ordering::SeqCst) {
            send(child, SIGTERM);
        }
    }
}

#[cfg(unix)]
fn send(child: &Child, signal: i32) {
    use rustix::process::{Pid, Signal, kill_process};
    let signal = if signal == SIGINT { Signal::INT } else { Signal::TERM };
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    // It may have ended.
    let _ = pid.map(|pid| kill_process(pid, signal));
}

#[cfg(not(unix))]
fn send(_child: &Child, _signal: i32) {}

fn code(status: ExitStatus) -> u8 {
    let code = status.code();
    #[cfg(unix)]
    let code = code.or_else(|| {
        std::os::unix::process::ExitStatusExt::signal(&status).map(|signal| 128 + signal)
    });
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}
