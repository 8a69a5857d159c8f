//! The commands of a chat.

use std::path::PathBuf;

/// What `/help` prints.
pub(super) const HELP: &str = "\
/help         this text
/clear        forget the conversation
/undo         take the last question and its answer back
/regenerate   answer again, with another seed
/set          show sampling and limits; /set temperature 0.7 or
              /set thinking_budget 200 changes one
/system TEXT  set the system prompt; without TEXT, none
/save FILE    save the conversation
/load FILE    continue a saved conversation
/image FILE   show an image with the next question; so does a line
              that is nothing but its path
/stats        statistics of the last answer
/quit         leave (so does Ctrl-D)
//TEXT        send /TEXT to the model
Tab completes commands and the names of files.
A line that ends with \\ or Alt-Enter goes on in the next.
Ctrl-C stops an answer and keeps the part that was printed.";

/// Commands, for Tab and for the nearest to one that does not exist.
pub(super) const COMMANDS: [&str; 11] = [
    "/help",
    "/clear",
    "/undo",
    "/regenerate",
    "/set",
    "/system",
    "/save",
    "/load",
    "/image",
    "/stats",
    "/quit",
];

/// A path with the home directory filled in as shells do it.
pub(super) fn at_home(file: &str) -> PathBuf {
    match (file.strip_prefix("~/"), std::env::home_dir()) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(file),
    }
}
