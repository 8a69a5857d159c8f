//! The `moeflux` program as a function: arguments in, text out, errors in one line. The binary calls it,
//! and so does the command of the Python package.

#![deny(unsafe_code)]

mod args;
mod bytes;
mod commands;
mod corpus;
mod demo;
mod dial;
mod dialect;
mod error;
#[expect(unsafe_code, reason = "a global allocator and a signal handler")]
mod fatal;
mod files;
mod hardware;
mod help;
mod interrupt;
mod library;
mod locate;
mod model;
mod paths;
mod pictures;
mod program;
mod progress;
mod prompts;
mod published;
mod rates;
mod renderer;
mod report;
mod results;
mod turns;
mod usage;
mod values;
mod version;
mod words;

use std::ffi::OsString;
use std::io::{self, Write};

use clap::FromArgMatches;
use clap::error::ErrorKind;
use moeflux_convert::synth::SynthError;
use moeflux_core::{call_options, catch_out_of_memory};
use moeflux_engine::EngineError;
use moeflux_engine::sampler::SamplerError;
use moeflux_server::ServerError;
use moeflux_store::StoreError;
use moeflux_text::run_renderer;

use crate::args::{Cli, Command};
use crate::error::{OutputError, UsageError};

pub use crate::bytes::parse as parse_bytes;
pub use crate::commands::models::Here as ModelHere;
pub use crate::library::{FindError, find_model, in_words, models_here, render_in_children};
pub use crate::paths::gpu_tuning as gpu_tuning_dir;
pub use crate::program::StartAgain;
pub use crate::words::did_you_mean;

/// Exit code of a command that did what it should.
const DONE: u8 = 0;

/// Exit code of a command line that makes no sense.
const USAGE: u8 = 2;

/// `SIGXFSZ` of Linux, macOS and the BSDs: a file grew beyond `ulimit -f`.
#[cfg(unix)]
const FILE_TOO_LARGE: i32 = 25;

/// Runs the program in this process and gives its exit code. `arguments` begin with the program's name.
/// `again` starts the same program in another process: for chat templates, and for servers in the background.
///
/// It is to be called once, while there is one thread, with the system's own handlers of signals: it
/// sets up the process for the command and leaves it so.
pub fn run_program(arguments: Vec<OsString>, again: StartAgain) -> u8 {
    if renderer::is_wanted(&arguments) {
        return run_renderer();
    }
    call_options(words::flag);
    fatal::map_stack();
    fatal::return_large_blocks();
    fatal::report_in_one_line();
    program::set(again);
    renderer::use_children();
    // Heard, so that the write fails and says which file it is, in place of the program's end.
    #[cfg(unix)]
    let _ = signal_hook::flag::register(FILE_TOO_LARGE, Default::default());
    let arguments = in_flags(arguments);
    if version::is_wanted(&arguments) {
        return match commands::print(&version::text()) {
            Err(err) if !err.is_closed_pipe() => {
                print_error(&err.to_string());
                fatal::FAILED
            }
            _ => DONE,
        };
    }
    let arguments = match dialect::translate(arguments, &help::command()) {
        Ok(translated) => {
            let is_quiet =
                translated.arguments.iter().any(|word| word == "-q" || word == "--quiet");
            translated.notes.iter().for_each(|note| report::note(is_quiet, note));
            translated.arguments
        }
        Err(err) => {
            print_error(&err.to_string());
            return USAGE;
        }
    };
    let parsed = help::command().try_get_matches_from(&arguments);
    let cli = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(err) => return explain(err, &arguments),
    };
    // Memory that a command's own work cannot get, outside of the engine.
    let done = catch_out_of_memory(|| run(&cli.command))
        .unwrap_or_else(|err| Err(EngineError::OutOfMemory(err).into()));
    match done {
        Ok(code) => code,
        Err(err) if err.downcast_ref().is_some_and(OutputError::is_closed_pipe) => DONE,
        Err(err) => {
            print_error(&(report::chain(&err) + report::remedy(&err)));
            if let Some(EngineError::Memory(shortage)) = err.downcast_ref() {
                // As in `print_error`.
                let _ = write!(io::stderr(), "{}", commands::plan::shortage_text(shortage));
            }
            if is_usage(&err) { USAGE } else { fatal::FAILED }
        }
    }
}

/// Runs a command. Its exit code where it did what it should.
fn run(command: &Command) -> anyhow::Result<u8> {
    let is_good = |good: bool| if good { DONE } else { fatal::FAILED };
    match command {
        Command::Run(args) => commands::run::run(args),
        Command::Chat(args) => commands::chat::run(args),
        Command::Serve(args) => commands::serve::run(args),
        Command::Launch(args) => return commands::launch::run(args),
        Command::Pack(args) => commands::pack::run(args),
        Command::Verify(args) => commands::verify::run(args),
        Command::Calibrate(args) => commands::calibrate::run(args),
        Command::Logits(args) => commands::logits::run(args),
        Command::Perplexity(args) => commands::perplexity::run(args),
        Command::Bench(args) => commands::bench::run(args),
        Command::Inspect(args) => commands::inspect::run(args),
        Command::Models(args) => commands::models::run(args),
        Command::Pull(args) => commands::pull::run(args),
        Command::Rm(args) => commands::rm::run(args),
        Command::Ps(args) => commands::ps::run(args),
        Command::Prompt(args) => commands::prompt::run(args),
        // These two say themselves what is wrong.
        Command::Plan(args) => return commands::plan::run(args).map(is_good),
        Command::Doctor(args) => return commands::doctor::run(args).map(is_good),
        Command::Replay(args) => commands::replay::run(args),
        Command::Synth(args) => commands::synth::run(args),
        Command::Completions(args) => commands::completions::run(args),
        Command::Keys(args) => commands::keys::run(args),
        Command::Man(args) => commands::man::run(args),
    }
    .map(|()| DONE)
}

/// The command line, where `help run` is written `run --help`, and `version` as a flag.
fn in_flags(mut arguments: Vec<OsString>) -> Vec<OsString> {
    if arguments.get(1).is_some_and(|word| word == "help") {
        arguments.remove(1);
        arguments.push(OsString::from("--help"));
    }
    if arguments.get(1).is_some_and(|word| word == "version") {
        arguments[1] = OsString::from("--version");
    }
    arguments
}

/// Prints what the parser returned in place of a command: help, the version, or a mistake in one
/// line.
fn explain(err: clap::Error, arguments: &[OsString]) -> u8 {
    let words = || arguments.iter().skip(1);
    if arguments.len() <= 1 || err.kind() == ErrorKind::MissingSubcommand {
        // Nothing was done, which a script with an empty variable should learn: the list of
        // commands goes to standard error, and the exit code is that of a wrong command line.
        // There is nothing left to report to when standard error is closed.
        let _ = write!(io::stderr(), "{}", help::command().render_help());
        return USAGE;
    }
    if !err.use_stderr() {
        let is_short =
            err.kind() == ErrorKind::DisplayHelp && !words().any(|word| word == "--help");
        let few = is_short.then(|| help::with_few_flags(help::command()));
        let few = few.and_then(|command| command.try_get_matches_from(arguments).err());
        return match few.unwrap_or(err).print().map_err(OutputError::from) {
            Err(err) if !err.is_closed_pipe() => {
                print_error(&err.to_string());
                fatal::FAILED
            }
            _ => DONE,
        };
    }
    let command = help::command();
    let sub = words().next().and_then(|word| command.find_subcommand(word));
    print_error(&usage::message(&err, sub.map(clap::Command::get_name)));
    USAGE
}

/// One line, whatever the message holds.
fn print_error(message: &str) {
    // There is nothing left to report to when standard error is closed.
    let _ = writeln!(io::stderr(), "moeflux: {}", words::one_line(message));
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
