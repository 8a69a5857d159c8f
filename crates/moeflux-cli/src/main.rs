//! The `moeflux` binary: arguments in, text out, errors in one line.

#![forbid(unsafe_code)]

mod args;
mod bytes;
mod commands;
mod corpus;
mod demo;
mod error;
mod files;
mod model;
mod paths;
mod progress;
mod report;
mod values;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use moeflux_engine::EngineError;
use moeflux_engine::sampler::SamplerError;
use moeflux_engine::synth::SynthError;
use moeflux_server::ServerError;
use moeflux_store::StoreError;

use crate::args::{Cli, Command};
use crate::error::UsageError;

/// Exit code of a command that failed.
const FAILED: u8 = 1;
/// Exit code of a command line that makes no sense.
const USAGE: u8 = 2;

/// `SIGXFSZ` of Linux, macOS and the BSDs: a file grew beyond `ulimit -f`.
#[cfg(unix)]
const FILE_TOO_LARGE: i32 = 25;

fn main() -> ExitCode {
    // Heard, so that the write fails and says which file it is, in place of the program's end.
    #[cfg(unix)]
    let _ = signal_hook::flag::register(FILE_TOO_LARGE, Default::default());
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(err) => return refuse_usage(&err),
    };
    let done = match &cli.command {
        Command::Run(args) => commands::run::run(args),
        Command::Chat(args) => commands::chat::run(args),
        Command::Serve(args) => commands::serve::run(args),
        Command::Pack(args) => commands::pack::run(args),
        Command::Calibrate(args) => commands::calibrate::run(args),
        Command::Logits(args) => commands::logits::run(args),
        Command::Perplexity(args) => commands::perplexity::run(args),
        Command::Bench(args) => commands::bench::run(args),
        Command::Inspect(args) => commands::inspect::run(args),
        Command::Plan(args) => commands::plan::run(args),
        Command::Replay(args) => commands::replay::run(args),
        Command::Synth(args) => commands::synth::run(args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) if is_broken_pipe(&err) => ExitCode::SUCCESS,
        Err(err) => {
            print_error(&report::chain(&err));
            ExitCode::from(if is_usage(&err) { USAGE } else { FAILED })
        }
    }
}

/// Prints what the parser has to say: help and versions as they are, mistakes
/// in one line.
fn refuse_usage(err: &clap::Error) -> ExitCode {
    if !err.use_stderr() {
        // Nobody is left to tell when standard output is closed.
        let _ = err.print();
        return ExitCode::SUCCESS;
    }
    let text = err.render().to_string();
    let first: Vec<&str> = text.lines().map(str::trim).take_while(|it| !it.is_empty()).collect();
    let message = first.join(" ");
    let message = message.strip_prefix("error: ").unwrap_or(&message);
    let hint = if message.contains("--help") { "" } else { " (see --help)" };
    print_error(&format!("{message}{hint}"));
    ExitCode::from(USAGE)
}

/// One line, whatever the message holds.
fn print_error(message: &str) {
    let line: String = message.chars().map(|it| if it.is_control() { ' ' } else { it }).collect();
    // Nobody is left to tell when standard error is closed.
    let _ = writeln!(io::stderr(), "moeflux: {line}");
}

/// Whether another command line would have done.
fn is_usage(err: &anyhow::Error) -> bool {
    let engine = err.downcast_ref::<EngineError>();
    let synth = err.downcast_ref::<SynthError>();
    let server = err.downcast_ref::<ServerError>();
    err.is::<UsageError>()
        || matches!(server, Some(ServerError::Open { .. } | ServerError::Key { .. }))
        || matches!(synth, Some(SynthError::UnknownShape { .. } | SynthError::Option { .. }))
        || matches!(
            engine,
            Some(
                EngineError::Option { .. }
                    | EngineError::Sampler(SamplerError::Option { .. })
                    | EngineError::Store(StoreError::BudgetTooSmall { .. })
            )
        )
}

fn is_broken_pipe(err: &anyhow::Error) -> bool {
    let io_error = err.downcast_ref::<io::Error>();
    io_error.is_some_and(|it| it.kind() == io::ErrorKind::BrokenPipe)
}
