//! Command lines as users of llama.cpp, Ollama, mlx-lm and vLLM write them, in this program's own flags: a
//! model without a flag before it, and flags by other names. What another program's flag does and no flag
//! does here is said with what takes its place.

mod commands;
mod flags;
mod model;

use std::ffi::{OsStr, OsString};

use clap::{Arg, ArgAction, Command};

use self::flags::{Does, Foreign};
use crate::error::UsageError;
use crate::words::shorten;

pub(crate) use self::commands::{Meaning, meaning};
pub(crate) use self::model::is_model;

/// Commands whose only argument without a flag is the model.
pub(crate) const OF_A_MODEL: [&str; 8] =
    ["serve", "plan", "inspect", "bench", "perplexity", "calibrate", "logits", "prompt"];

/// Commands with a prompt, before which a model may stand.
pub(crate) const OF_A_PROMPT: [&str; 2] = ["run", "chat"];

/// A command line of this program's own.
#[derive(Debug, Default)]
pub(crate) struct Translated {
    pub(crate) arguments: Vec<OsString>,
    /// Flags that were left out, and why nothing is missing.
    pub(crate) notes: Vec<String>,
}

/// Translates a command line; what is this program's own stays as it is.
///
/// # Errors
/// Where a flag of another program has no counterpart: what to write in its place.
pub(crate) fn translate(
    arguments: Vec<OsString>,
    command: &Command,
) -> Result<Translated, UsageError> {
    let first = arguments.get(1).and_then(|word| word.to_str()).unwrap_or_default();
    let Some(sub) = command.find_subcommand(first) else {
        refuse_flag_first(first)?;
        refuse_help_inside(first, command)?;
        refuse_more(first, &arguments)?;
        return Ok(Translated { arguments, notes: Vec::new() });
    };
    let mut words = arguments.into_iter();
    let mut line = Line::new(sub);
    line.out.extend(words.by_ref().take(2));
    let mut words = words.peekable();
    while let Some(word) = words.next() {
        if word == "--" {
            line.rest.extend(words);
            break;
        }
        line.take(word, &mut words)?;
    }
    line.finish()
}

/// A model's flag before any command: `moeflux -hf org/name`.
fn refuse_flag_first(first: &str) -> Result<(), UsageError> {
    let is_model = ["-m", "--model"].contains(&first)
        || flags::find("chat", first).is_some_and(|found| found.does == Does::Is("--model"));
    if is_model {
        Err(UsageError(format!(
            "{first} comes after a command: moeflux chat --model NAME, or moeflux serve --model NAME"
        )))
    } else {
        Ok(())
    }
}

/// What follows `--version` and would be passed over.
fn refuse_more(first: &str, arguments: &[OsString]) -> Result<(), UsageError> {
    match arguments.get(2) {
        Some(more) if ["--version", "-V"].contains(&first) => {
            let more = shorten(&more.to_string_lossy(), MOST_OF_A_WORD);
            Err(UsageError(format!("'{more}' does not go with {first}: leave one out")))
        }
        _ => Ok(()),
    }
}

/// The longest part of a word that a message repeats, in characters.
const MOST_OF_A_WORD: usize = 60;

/// Refuses a word of one dash and several letters that the parser would take for a wish for help, or for the
/// version, because one of the letters is that flag's: nothing would be done, and without an error.
fn refuse_help_inside(text: &str, command: &Command) -> Result<(), UsageError> {
    let is_cluster = text.starts_with('-') && !text.starts_with("--") && text.chars().count() > 2;
    if !is_cluster {
        return Ok(());
    }
    for letter in text.chars().skip(1) {
        let by_letter = |arg: &&Arg| {
            let others = arg.get_all_short_aliases().unwrap_or_default();
            arg.get_short() == Some(letter) || others.contains(&letter)
        };
        let found = command.get_arguments().find(by_letter);
        let is_version = letter == 'V' && command.get_name() == "moeflux";
        match found {
            // The rest is its value.
            Some(arg) if takes_value(arg) => return Ok(()),
            Some(arg) if arg.get_id() == "help" => {}
            None if is_version => {}
            Some(_) => continue,
            // The parser names it.
            None => return Ok(()),
        }
        let name = match command.get_name() {
            "moeflux" => String::from("moeflux"),
            name => format!("moeflux {name}"),
        };
        let shown = shorten(text, MOST_OF_A_WORD);
        return Err(UsageError(format!("there is no flag {shown} (see {name} --help)")));
    }
    Ok(())
}

type Words = std::iter::Peekable<std::vec::IntoIter<OsString>>;

/// A command line while it is translated.
struct Line<'a> {
    sub: &'a Command,
    out: Vec<OsString>,
    /// Where in `out` there are arguments without a flag.
    bare: Vec<usize>,
    /// What follows `--`.
    rest: Vec<OsString>,
    prompt: Option<OsString>,
    /// A GGUF file of the repository that another flag names.
    file: Option<String>,
    has_model: bool,
    given: Vec<Given>,
    notes: Vec<String>,
}

/// A flag of this program with a value, and what it was called.
struct Given {
    flag: String,
    name: String,
    value: OsString,
    /// Whether it was another program's name.
    is_foreign: bool,
}

impl<'a> Line<'a> {
    fn new(sub: &'a Command) -> Line<'a> {
        Line {
            sub,
            out: Vec::new(),
            bare: Vec::new(),
            rest: Vec::new(),
            prompt: None,
            file: None,
            has_model: false,
            given: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Takes a word, and its value from those that follow.
    fn take(&mut self, word: OsString, words: &mut Words) -> Result<(), UsageError> {
        let text = word.to_str().unwrap_or_default();
        if !is_flag(text) {
            self.bare.push(self.out.len());
            self.out.push(word);
            return Ok(());
        }
        let (name, inline) = match text.split_once('=').or_else(|| with_number(text)) {
            Some((name, value)) => (name, Some(OsString::from(value))),
            None => (text, None),
        };
        let own = self.own(text);
        let is_cluster = !text.starts_with("--") && name.chars().count() > 2;
        let foreign = flags::find(self.sub.get_name(), name);
        if let Some(foreign) = foreign.filter(|_| own.is_none() || is_cluster) {
            return self.apply(foreign, name.to_owned(), inline, word, words);
        }
        refuse_help_inside(text, self.sub)?;
        self.has_model |=
            own.is_some_and(|own| ["model", "shape"].contains(&own.arg.get_id().as_str()));
        let value = match own {
            Some(own) if own.waits => words.next_if(is_value),
            _ => None,
        };
        if let Some((own, value)) = own.zip(value.clone().or_else(|| inline.clone()))
            && self.is_known(own.arg, name, &value, false)?
        {
            return Ok(());
        }
        self.out.push(word);
        self.out.extend(value);
        Ok(())
    }

    /// The flag of this command that a word is.
    fn own(&self, text: &str) -> Option<Own<'a>> {
        let mut all = self.sub.get_arguments().filter(|arg| !arg.is_positional());
        if let Some(long) = text.strip_prefix("--") {
            let (name, value) = long.split_once('=').map_or((long, None), |(a, b)| (a, Some(b)));
            let arg = all.find(|arg| {
                let others = arg.get_all_aliases().unwrap_or_default();
                arg.get_long() == Some(name) || others.contains(&name)
            })?;
            return Some(Own { arg, waits: takes_value(arg) && value.is_none() });
        }
        // Letters up to the first one that takes the rest for its value.
        let by_letter = |letter: char| {
            self.sub.get_arguments().find(|arg| {
                let others = arg.get_all_short_aliases().unwrap_or_default();
                arg.get_short() == Some(letter) || others.contains(&letter)
            })
        };
        let letters = &text[1..];
        for (at, letter) in letters.char_indices() {
            let arg = by_letter(letter)?;
            let is_last = at + letter.len_utf8() == letters.len();
            if takes_value(arg) || is_last {
                return Some(Own { arg, waits: takes_value(arg) && is_last });
            }
        }
        None
    }

    fn apply(
        &mut self,
        foreign: &Foreign,
        name: String,
        inline: Option<OsString>,
        word: OsString,
        words: &mut Words,
    ) -> Result<(), UsageError> {
        let mut value = || inline.clone().or_else(|| words.next_if(is_value));
        match foreign.does {
            Does::Is(flag) => {
                if !self.knows(flag) {
                    refuse_help_inside(&word.to_string_lossy(), self.sub)?;
                    self.out.push(word);
                    return Ok(());
                }
                self.has_model |= flag == "--model";
                let value = value();
                self.give(flag, &name, value)?;
            }
            Does::Unless(flag, defaults) => {
                if !self.knows(flag) {
                    self.out.push(word);
                    return Ok(());
                }
                match value() {
                    Some(value) if defaults.iter().any(|default| value == *default) => {}
                    value => self.give(flag, &name, value)?,
                }
            }
            Does::Name => {
                let value = value().ok_or_else(|| needs_value(&name))?;
                self.bare.push(self.out.len());
                self.out.push(value);
            }
            Does::Prompt => self.prompt = Some(value().ok_or_else(|| needs_value(&name))?),
            Does::File => {
                let value = value().ok_or_else(|| needs_value(&name))?;
                self.file = Some(value.to_string_lossy().into_owned());
            }
            Does::Layers => match value() {
                Some(value) if value == "0" => {
                    self.give("--device", &name, Some("cpu".into()))?;
                }
                _ => return Err(answer(&name, flags::LAYERS)),
            },
            Does::CacheType => {
                let value = value().ok_or_else(|| needs_value(&name))?;
                let kind =
                    flags::cache_type(&value).ok_or_else(|| answer(&name, flags::CACHE_TYPES))?;
                // Keys and values have a flag each elsewhere.
                let wanted = OsString::from(format!("--kv-type={kind}"));
                let others = |word: &&OsString| word.to_string_lossy().starts_with("--kv-type");
                match self.out.iter().find(others) {
                    Some(given) if *given == wanted => {}
                    Some(_) => return Err(answer(&name, flags::ONE_CACHE_TYPE)),
                    None => self.out.push(wanted),
                }
            }
            Does::Nothing(why) => self.leave_out(&name, why),
            Does::NothingWith(why) => {
                let _ = value();
                self.leave_out(&name, why);
            }
            Does::NothingMaybeWith(why, values) => {
                let _ = words.next_if(|word| values.iter().any(|value| *word == **value));
                self.leave_out(&name, why);
            }
            Does::Other(what) => return Err(answer(&name, what)),
        }
        Ok(())
    }

    fn knows(&self, flag: &str) -> bool {
        self.own(flag).is_some()
    }

    fn give(&mut self, flag: &str, name: &str, value: Option<OsString>) -> Result<(), UsageError> {
        match (value, self.own(flag)) {
            (Some(value), Some(own)) if self.is_known(own.arg, name, &value, true)? => {}
            (Some(value), _) => self.out.push(joined(flag, &value)),
            // Its value is missing: the parser says so.
            (None, _) => self.out.push(OsString::from(flag)),
        }
        Ok(())
    }

    /// Notes the value of a flag; whether it has it already by another name.
    ///
    /// # Errors
    /// Where it has another one: the parser would name a flag that the user did not write.
    fn is_known(
        &mut self,
        arg: &Arg,
        name: &str,
        value: &OsString,
        is_foreign: bool,
    ) -> Result<bool, UsageError> {
        let Some(flag) = arg.get_long().map(|long| format!("--{long}")) else { return Ok(false) };
        if matches!(arg.get_action(), ArgAction::Append) {
            return Ok(false);
        }
        let is_same = |given: &&Given| given.flag == flag && (given.is_foreign || is_foreign);
        if let Some(given) = self.given.iter().find(is_same) {
            return match (given.value == *value, given.name == name) {
                (true, _) => Ok(true),
                (false, true) => Err(UsageError(format!("{name} is given twice: give it once"))),
                (false, false) => Err(UsageError(format!(
                    "{} and {name} are one flag here, {flag}: leave one out",
                    given.name
                ))),
            };
        }
        let (name, value) = (name.to_owned(), value.clone());
        self.given.push(Given { flag, name, value, is_foreign });
        Ok(false)
    }

    fn leave_out(&mut self, name: &str, why: &str) {
        self.notes.push(format!("{name} is left out: {why}"));
    }

    fn finish(mut self) -> Result<Translated, UsageError> {
        self.name_model();
        self.add_file()?;
        if let Some(prompt) = self.prompt.take() {
            self.rest.push(prompt);
        }
        if !self.rest.is_empty() {
            self.out.push(OsString::from("--"));
            self.out.append(&mut self.rest);
        }
        Ok(Translated { arguments: self.out, notes: self.notes })
    }

    /// Puts the flag before a model that stands without one.
    fn name_model(&mut self) {
        let name = self.sub.get_name();
        let nth = if name == "launch" { 1 } else { 0 };
        let Some(&at) = self.bare.get(nth).filter(|_| !self.has_model) else { return };
        let n_others = self.bare.len() - 1 + self.rest.len() + usize::from(self.prompt.is_some());
        let is_model = if OF_A_PROMPT.contains(&name) {
            n_others <= 1 && is_model(&self.out[at], n_others == 0)
        } else {
            name == "launch" || OF_A_MODEL.contains(&name)
        };
        if is_model {
            self.out[at] = joined("--model", &self.out[at]);
            self.has_model = true;
        }
    }

    /// Joins a repository and the file of it that another flag names.
    fn add_file(&mut self) -> Result<(), UsageError> {
        let Some(file) = self.file.take() else { return Ok(()) };
        if ["pull", "rm"].contains(&self.sub.get_name()) {
            return match self.bare[..] {
                [at] if !self.out[at].to_string_lossy().contains(':') => {
                    self.out[at].push(format!(":{file}"));
                    Ok(())
                }
                _ => Err(UsageError(format!(
                    "the file {file} of which repository? write org/name:{file}"
                ))),
            };
        }
        let is_model = |word: &&mut OsString| word.to_string_lossy().starts_with("--model=");
        match self.out.iter_mut().find(is_model) {
            Some(word) if !word.to_string_lossy()["--model=".len()..].contains(':') => {
                word.push(format!(":{file}"));
                Ok(())
            }
            _ => Err(UsageError(format!(
                "the file {file} of which repository? write --model org/name:{file}"
            ))),
        }
    }
}

/// A flag of this program.
#[derive(Clone, Copy)]
struct Own<'a> {
    arg: &'a Arg,
    /// Whether the next word is its value.
    waits: bool,
}

fn takes_value(arg: &Arg) -> bool {
    arg.get_action().takes_values()
}

/// Whether a word is a flag: `-` alone is standard input, and numbers may be negative.
fn is_flag(text: &str) -> bool {
    text.len() > 1 && text.starts_with('-') && text.parse::<f64>().is_err()
}

/// A short flag and the number that is written right behind it: `-c4096`.
fn with_number(text: &str) -> Option<(&str, &str)> {
    let at = text.find(|c: char| c.is_ascii_digit()).filter(|at| *at > 1)?;
    let (name, number) = text.split_at(at);
    let is_short = !text.starts_with("--") && number.bytes().all(|b| b.is_ascii_digit());
    is_short.then_some((name, number))
}

fn is_value(word: &OsString) -> bool {
    !is_flag(word.to_str().unwrap_or_default())
}

fn joined(flag: &str, value: &OsStr) -> OsString {
    let mut word = OsString::from(flag);
    word.push("=");
    word.push(value);
    word
}

fn needs_value(name: &str) -> UsageError {
    UsageError(format!("{name} needs a value"))
}

fn answer(name: &str, what: &str) -> UsageError {
    UsageError(format!("{name} is a flag of another program: {what}"))
}

#[cfg(test)]
mod tests;
