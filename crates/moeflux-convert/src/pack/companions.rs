//! Files of a model besides its weights.

use std::path::PathBuf;

use moeflux_core::checkpoint::Checkpoint;
use moeflux_core::checkpoint::companions::TEMPLATE_FOLDER;

/// Files of a model in addition to its weights.
pub(super) const COMPANIONS: [&str; 13] = [
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "tiktoken.model",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "README.md",
];

/// Most further chat templates that are copied.
pub(super) const MAX_TEMPLATES: usize = 64;

/// The files of `checkpoint` that a container gets a copy of: names in the container, and where
/// they are.
pub(super) fn companions_of(checkpoint: &Checkpoint) -> Vec<(String, PathBuf)> {
    let named = |name: &&str| Some((name.to_string(), checkpoint.companion(name)?));
    let mut files: Vec<_> = COMPANIONS.iter().filter_map(named).collect();
    let folder = checkpoint.companion_folder(TEMPLATE_FOLDER);
    let entries = folder.and_then(|folder| folder.read_dir().ok()).into_iter().flatten().flatten();
    let mut templates: Vec<_> = entries
        .take(MAX_TEMPLATES)
        .filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
        .filter(|(name, path)| name.ends_with(".jinja") && path.is_file())
        .map(|(name, path)| (format!("{TEMPLATE_FOLDER}/{name}"), path))
        .collect();
    templates.sort_unstable();
    files.extend(templates);
    files
}

/// Longest of them: the limit for `tokenizer.json`.
pub(super) const MAX_COMPANION_BYTES: u64 = 128 << 20;
