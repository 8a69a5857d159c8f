//! What Tab completes in a chat: commands, settings, and names of files.

use std::fs;
use std::path::{MAIN_SEPARATOR, Path};

use moeflux_core::visible;
use reedline::{Completer, CompletionResult, Span, Suggestion};

use super::command::{COMMANDS, at_home};
use super::settings::NAMES;

/// Names of a folder that are looked at, at most.
const MAX_FILES: usize = 10_000;

/// Completes lines that begin with a command.
pub(super) struct Lines;

impl Completer for Lines {
    fn complete(&mut self, line: &str, pos: usize) -> CompletionResult {
        let line = line.get(..pos).unwrap_or(line);
        let suggestions: Vec<Suggestion> = completions(line)
            .into_iter()
            .map(|Completion { value, from, is_whole }| Suggestion {
                value,
                span: Span::new(from, line.len()),
                append_whitespace: is_whole,
                ..Suggestion::default()
            })
            .collect();
        CompletionResult::fresh(suggestions)
    }
}

/// What a part of a line may become.
#[derive(Debug, PartialEq, Eq)]
struct Completion {
    value: String,
    /// Where in the line it begins.
    from: usize,
    /// Whether the next word follows it: nothing goes on behind it, as in a folder.
    is_whole: bool,
}

fn completions(line: &str) -> Vec<Completion> {
    let Some((command, argument)) = line.split_once(' ') else {
        let is_begun = |command: &&str| line.starts_with('/') && command.starts_with(line);
        let takes_more = ["/set", "/system", "/save", "/load", "/image"];
        return COMMANDS
            .into_iter()
            .filter(is_begun)
            .map(|command| Completion {
                value: command.to_owned(),
                from: 0,
                is_whole: takes_more.contains(&command),
            })
            .collect();
    };
    let from = line.len() - argument.len();
    match command {
        "/set" => NAMES
            .into_iter()
            .filter(|name| name.starts_with(argument))
            .map(|name| Completion { value: name.to_owned(), from, is_whole: true })
            .collect(),
        "/save" | "/load" | "/image" => files(argument)
            .into_iter()
            .map(|value| Completion { value, from, is_whole: false })
            .collect(),
        _ => Vec::new(),
    }
}

/// Files whose names begin as written, folders with a separator behind them.
fn files(written: &str) -> Vec<String> {
    let at = written.rfind(['/', MAIN_SEPARATOR]).map_or(0, |at| at + 1);
    let (folder, begun) = written.split_at(at);
    let dir = match folder {
        "" => Path::new(".").to_path_buf(),
        folder => at_home(folder),
    };
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let named = entries.take(MAX_FILES).flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let is_hidden = name.starts_with('.') && !begun.starts_with('.');
        // A name may hold commands for terminals, which show all names.
        if !name.starts_with(begun) || is_hidden || visible(&name) != name || name.contains('\n') {
            return None;
        }
        let end = if entry.path().is_dir() { "/" } else { "" };
        Some(format!("{folder}{name}{end}"))
    });
    let mut named: Vec<String> = named.collect();
    named.sort();
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(line: &str) -> Vec<String> {
        completions(line).into_iter().map(|completion| completion.value).collect()
    }

    #[test]
    fn commands_and_settings_are_completed() {
        assert_eq!(values("/sa"), ["/save"]);
        assert_eq!(values("/s"), ["/set", "/system", "/save", "/stats"]);
        assert_eq!(values("/set te"), ["temperature"]);
        assert_eq!(completions("/set te")[0].from, 5);
        for line in ["", "sa", "hello /sa", "/stats x", "//sa"] {
            assert!(values(line).is_empty(), "{line}");
        }
    }

    #[test]
    fn files_are_completed_without_names_that_command_terminals() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["talk one.json", "talk2.json", ".hidden", "other"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        fs::create_dir(dir.path().join("talks")).unwrap();
        #[cfg(unix)]
        fs::write(dir.path().join("talk\x1b[2J"), "").unwrap();
        let folder = format!("{}/", dir.path().display());
        let at = |name: &str| format!("{folder}{name}");
        assert_eq!(
            values(&format!("/load {folder}ta")),
            [at("talk one.json"), at("talk2.json"), at("talks/")]
        );
        assert_eq!(values(&format!("/save {folder}.h")), [at(".hidden")]);
        assert_eq!(values(&format!("/save {folder}")).len(), 4);
        assert!(values("/load /nowhere/at/all").is_empty());
    }
}
