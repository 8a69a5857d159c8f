//! Whether a word before a prompt, or in its place, is a model.

use std::ffi::OsStr;
use std::path::{Component, Path};

use moeflux_hub::{DEFAULT_ENDPOINT, is_address, is_hub_name};

use crate::published;

/// Files by which a folder is known as a model's.
const MARKS: [&str; 4] = ["config.json", "moeflux.json", "model_weights.json", "snapshots"];

/// Endings of files of weights.
const ENDS: [&str; 2] = [".gguf", ".safetensors"];

/// Whether a word is a model: a path, a name or an address of the Hub, or the short name of a published
/// model. Where it is the only word, and may be the prompt, a path must hold a model or be written
/// as one.
pub(crate) fn is_model(word: &OsStr, is_alone: bool) -> bool {
    let path = Path::new(word);
    if !word.is_empty() && path.exists() {
        return !is_alone || holds_model(path);
    }
    let Some(text) = word.to_str() else { return false };
    let is_one_word = !text.is_empty() && !text.contains(char::is_whitespace);
    // Two words without a flag are a model and a prompt: the first may have a mistake in it.
    let has_mistake = || !is_alone && published::near(text).is_some();
    is_one_word
        && (published::by_name(text).is_some()
            || is_hub_name(text)
            || is_address(text, DEFAULT_ENDPOINT)
            || is_written_as_path(text)
            || has_mistake())
}

fn holds_model(path: &Path) -> bool {
    if path.is_file() {
        return is_weights(&path.to_string_lossy());
    }
    let has_weights = || {
        let entries = path.read_dir().into_iter().flatten().flatten();
        entries.take(1000).any(|entry| is_weights(&entry.file_name().to_string_lossy()))
    };
    MARKS.iter().any(|name| path.join(name).exists()) || has_weights()
}

fn is_weights(name: &str) -> bool {
    let name = name.to_lowercase();
    ENDS.iter().any(|end| name.ends_with(end))
}

/// Whether a word that names nothing is a path all the same, with a mistake in it.
fn is_written_as_path(text: &str) -> bool {
    let names = Path::new(text).components().filter(|part| matches!(part, Component::Normal(_)));
    let is_deep = names.count() >= 2;
    let starts = ["./", "../", "~/", ".\\", "..\\"];
    is_weights(text)
        || starts.iter().any(|start| text.starts_with(start))
        || (text.starts_with('/') && is_deep)
}
