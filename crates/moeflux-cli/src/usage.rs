//! Command lines that make no sense, in the words of this program: the flag, the value, and what
//! to write instead.

use std::error::Error as _;
use std::ffi::OsStr;
use std::fmt::Write as _;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::dialect::{Meaning, is_model, meaning};
use crate::help;
use crate::words::{did_you_mean, shorten};

/// One line for what the parser refused.
pub(crate) fn message(err: &clap::Error, command: Option<&str>) -> String {
    let facts = Facts { err, command };
    match err.kind() {
        ErrorKind::InvalidSubcommand => facts.unknown_command(),
        ErrorKind::UnknownArgument => facts.unknown_argument(),
        ErrorKind::InvalidValue => facts.unknown_value(),
        ErrorKind::ValueValidation => facts.refused_value(),
        ErrorKind::MissingRequiredArgument => facts.missing(),
        ErrorKind::ArgumentConflict => facts.conflict(),
        ErrorKind::TooManyValues | ErrorKind::TooFewValues | ErrorKind::WrongNumberOfValues => {
            let flag = facts.flag();
            format!("{flag} takes another number of values{}", facts.see_help())
        }
        ErrorKind::NoEquals => format!("{0} needs its value after a sign: {0}=VALUE", facts.flag()),
        ErrorKind::InvalidUtf8 => String::from("an argument is not UTF-8: write it in UTF-8"),
        _ => format!("the command line makes no sense{}", facts.see_help()),
    }
}

struct Facts<'a> {
    err: &'a clap::Error,
    /// The command, where one was recognised.
    command: Option<&'a str>,
}

impl Facts<'_> {
    fn text(&self, kind: ContextKind) -> Option<String> {
        match self.err.get(kind)? {
            ContextValue::String(text) => Some(text.clone()),
            ContextValue::Strings(texts) => texts.first().cloned(),
            _ => None,
        }
    }

    fn texts(&self, kind: ContextKind) -> Vec<String> {
        match self.err.get(kind) {
            Some(ContextValue::Strings(texts)) => texts.clone(),
            Some(ContextValue::String(text)) => vec![text.clone()],
            _ => Vec::new(),
        }
    }

    fn flag(&self) -> String {
        flag_of(&self.text(ContextKind::InvalidArg).unwrap_or_default())
    }

    fn value(&self) -> String {
        shorten(&self.text(ContextKind::InvalidValue).unwrap_or_default(), MOST_OF_A_VALUE)
    }

    fn see_help(&self) -> String {
        match self.command {
            Some(command) => format!(" (see moeflux {command} --help)"),
            None => String::from(" (see moeflux --help)"),
        }
    }

    fn unknown_command(&self) -> String {
        let name = self.text(ContextKind::InvalidSubcommand).unwrap_or_default();
        let shown = shorten(&name, MOST_OF_A_VALUE);
        if name.contains(char::is_whitespace) {
            return format!(
                "'{shown}' is no command: to ask the demo model, write moeflux run '{shown}'"
            );
        }
        if is_model(OsStr::new(&name), true) {
            return format!("'{shown}' is a model and no command: write moeflux chat {shown}");
        }
        match meaning(&name, &help::command()) {
            Some(Meaning::Command(near)) => {
                format!("'{shown}' is no command: did you mean {near}?{}", self.see_help())
            }
            Some(Meaning::Advice(advice)) => format!("'{shown}' is no command: {advice}"),
            None => format!("'{shown}' is no command: moeflux --help lists them"),
        }
    }

    fn unknown_argument(&self) -> String {
        let all = self.text(ContextKind::InvalidArg).unwrap_or_default();
        let shown = shorten(&all, MOST_OF_A_VALUE);
        if !all.starts_with('-') || all == "-" {
            return match self.command {
                Some("run") => format!(
                    "'{shown}' is a second prompt: write the prompt in quotes, and name a model with --model"
                ),
                Some("chat") => format!(
                    "'{shown}' is a second message: write the message in quotes, and name a model with --model"
                ),
                _ => format!("'{shown}' is one argument too many{}", self.see_help()),
            };
        }
        if self.command == Some("launch") {
            return format!("there is no flag {shown}: flags of the agent go after --");
        }
        match self.text(ContextKind::SuggestedArg) {
            Some(near) => {
                format!("there is no flag {shown}: did you mean {near}?{}", self.see_help())
            }
            None => format!("there is no flag {shown}{}", self.see_help()),
        }
    }

    /// A value that is not one of the few that there are, or none at all.
    fn unknown_value(&self) -> String {
        let (flag, value) = (self.flag(), self.value());
        let known = self.texts(ContextKind::ValidValue);
        if value.is_empty()
            && self.text(ContextKind::InvalidValue).is_none_or(|text| text.is_empty())
        {
            let of =
                if known.is_empty() { String::new() } else { format!(": {}", known.join(", ")) };
            return format!("{flag} needs a value{of}{}", self.see_help());
        }
        let near = did_you_mean(&value, known.iter().map(String::as_str));
        let mut text = format!("{flag} '{value}': ");
        if let Some(near) = near {
            let _ = write!(text, "did you mean {near}? ");
        }
        text + &format!("choose {}", choices(&known))
    }

    /// A value that a parser of this program refused; the source says what would do.
    fn refused_value(&self) -> String {
        let remedy = self.err.source().map_or_else(|| self.see_help(), ToString::to_string);
        format!("{} '{}': {remedy}", self.flag(), self.value())
    }

    fn missing(&self) -> String {
        let names: Vec<String> = self
            .texts(ContextKind::InvalidArg)
            .into_iter()
            .map(|name| name.trim_end_matches("...").to_owned())
            .collect();
        let command = self.command.unwrap_or("this command");
        format!("{command} needs {}{}", names.join(" and "), self.see_help())
    }

    fn conflict(&self) -> String {
        let flag = self.flag();
        let others: Vec<String> =
            self.texts(ContextKind::PriorArg).iter().map(|text| flag_of(text)).collect();
        if others.iter().all(|name| *name == flag) {
            return format!("{flag} is given twice: give it once");
        }
        format!("{flag} does not go with {}: leave one out", others.join(", "))
    }
}

/// The longest part of a value that a message repeats, in characters.
const MOST_OF_A_VALUE: usize = 60;

/// `a, b or c`.
fn choices(names: &[String]) -> String {
    match names {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        _ => names.concat(),
    }
}

/// A flag without the name of its value: `--ctx` of `--ctx <N>`, `--logprobs` of `--logprobs[=<N>]`.
fn flag_of(usage: &str) -> String {
    usage.split([' ', '=', '[']).next().unwrap_or_default().trim_end_matches("...").to_owned()
}
