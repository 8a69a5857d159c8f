//! Help: `-h` shows the flags used most, `--help` all of them, and no command lists commands by
//! what they are for.

use std::sync::LazyLock;

use clap::{Arg, ArgAction, Command, CommandFactory};

use crate::args::{Cli, DEVICE_VARIABLE};
use crate::dialect::{OF_A_MODEL, OF_A_PROMPT};

/// What commands are for. A command in no group is listed under [`OTHER`].
const GROUPS: [(&str, &[&str]); 5] = [
    ("Use a model", &["run", "chat", "serve", "launch", "ps", "keys"]),
    (
        "Get a model and look at it",
        &["models", "pull", "rm", "plan", "inspect", "prompt", "verify"],
    ),
    ("Convert a model", &["pack", "calibrate", "synth"]),
    ("Measure", &["doctor", "bench", "perplexity", "logits", "replay"]),
    ("Install", &["completions", "man"]),
];
const OTHER: &str = "Other";

/// Commands that run on the processor unless `--device` names another device: the bits of what they write are the same
/// on all processors, and no other device's; or they run nothing.
const ON_CPU: [&str; 4] = ["logits", "perplexity", "calibrate", "inspect"];

/// Flags of large commands that `-h` shows.
const FEW: [&str; 21] = [
    "prompt",
    "message",
    "system",
    "session",
    "model",
    "device",
    "ctx",
    "expert_cache",
    "temperature",
    "seed",
    "max_tokens",
    "stats",
    "addr",
    "port",
    "api_key_file",
    "keys",
    "sessions",
    "json",
    "shape",
    "text",
    "out",
];

/// `-h` shows all flags of a command that has at most this number of them.
const SMALL: usize = 14;

/// Columns of help where `COLUMNS` names fewer than [`MIN_WIDTH`], which no terminal has.
const WIDTH: usize = 80;
const MIN_WIDTH: usize = 20;

/// The command line, with help as this program shows it.
pub(crate) fn command() -> Command {
    let mut command = Cli::command().disable_help_subcommand(true).disable_help_flag(true);
    let columns = std::env::var("COLUMNS").ok().and_then(|text| text.parse::<usize>().ok());
    if columns.is_some_and(|columns| columns < MIN_WIDTH) {
        command = command.term_width(WIDTH);
    }
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().into()).collect();
    for name in names {
        let device = if ON_CPU.contains(&name.as_str()) { "cpu" } else { DEFAULT_DEVICE.as_str() };
        command = command.mut_subcommand(name, |sub| {
            let has_device = sub.get_arguments().any(|arg| arg.get_id() == "device");
            let sub = if has_device {
                sub.mut_arg("device", |arg| arg.default_value(device))
            } else {
                sub
            };
            let sub = match sub.get_name() {
                "serve" => sub.mut_arg("model", |arg| arg.action(ArgAction::Append)),
                _ => sub,
            };
            with_usage(sub)
                .disable_help_flag(true)
                .disable_version_flag(true)
                .arg(help_flag("Show all flags; -h shows the most used"))
        });
    }
    let text = overview(&command);
    command.arg(help_flag("Show this text")).override_help(text)
}

/// A command's first line of help, where a model may stand without a flag before it.
fn with_usage(sub: Command) -> Command {
    let name = sub.get_name().to_owned();
    let words = match &name[..] {
        name if OF_A_PROMPT.contains(&name) => "[MODEL] [PROMPT] [OPTIONS]",
        name if OF_A_MODEL.contains(&name) => "[MODEL] [OPTIONS]",
        _ => return sub,
    };
    sub.override_usage(format!("moeflux {name} {words}"))
}

/// Where models run that `--device` says nothing of.
static DEFAULT_DEVICE: LazyLock<String> = LazyLock::new(|| {
    let name = std::env::var_os(DEVICE_VARIABLE).filter(|name| !name.is_empty());
    name.map_or_else(|| String::from("auto"), |name| name.to_string_lossy().into_owned())
});

/// `command` as `-h` shows it: large commands without the flags that few need.
pub(crate) fn with_few_flags(mut command: Command) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().into()).collect();
    for name in names {
        command = command.mut_subcommand(&name, |sub| {
            if sub.get_arguments().count() <= SMALL {
                return sub;
            }
            let more = format!("moeflux {name} --help shows all flags");
            let examples = sub.get_after_help().map(ToString::to_string).unwrap_or_default();
            sub.after_help(format!("{examples}\n\n{more}").trim_start().to_owned()).mut_args(
                |arg| {
                    let is_shown = arg.is_required_set() || FEW.contains(&arg.get_id().as_str());
                    if is_shown { arg } else { arg.hide(true) }
                },
            )
        });
    }
    command
}

fn help_flag(text: &'static str) -> Arg {
    // Long help has an empty line between flags: too long for what fits a line each.
    Arg::new("help").short('h').long("help").action(ArgAction::HelpShort).help(text)
}

/// What `moeflux` alone prints.
fn overview(command: &Command) -> String {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let mut text = format!("{about}\n\nUsage: moeflux <COMMAND> [OPTIONS]\n");
    let names = || command.get_subcommands().map(Command::get_name);
    let is_grouped = |name: &&str| GROUPS.iter().any(|(_, group)| group.contains(name));
    let others: Vec<&str> = names().filter(|name| !is_grouped(name)).collect();
    for (group, members) in GROUPS.iter().copied().chain([(OTHER, &others[..])]) {
        let commands: Vec<&Command> =
            members.iter().filter_map(|name| command.find_subcommand(name)).collect();
        if commands.is_empty() {
            continue;
        }
        text.push_str(&format!("\n{group}:\n"));
        for command in commands {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            text.push_str(&format!("  {:<12}{about}\n", command.get_name()));
        }
    }
    text + EXAMPLES
}

/// Examples of the whole program.
pub(crate) const EXAMPLES: &str = "
Examples:
  moeflux run \"What does Vec::push do?\"   answered by the built-in demo model
  moeflux models                          which models there are, what fits
  moeflux chat org/name                   chat with a model of the Hub
  moeflux run --help                      all flags of a command
";
