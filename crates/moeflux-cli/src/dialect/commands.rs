//! Commands of other programs, and words that are near a command's name.

use clap::Command;

/// What a word in a command's place means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// A command of this program.
    Command(String),
    /// No command here: what to do.
    Advice(&'static str),
}

/// What other programs call a command of this one, by the command's own name.
const OTHERS: &[(&str, &[&str])] = &[
    (
        "run",
        &[
            "generate",
            "ask",
            "complete",
            "completion",
            "answer",
            "exec",
            "infer",
            "query",
            "predict",
        ],
    ),
    ("chat", &["talk", "repl", "interactive", "cli", "conversation"]),
    ("serve", &["server", "start", "api", "listen", "openai", "up", "web", "ui"]),
    ("launch", &["agent", "code", "claude", "codex", "opencode"]),
    ("pack", &["convert", "quantize", "quantise", "create", "make", "import", "compress"]),
    ("bench", &["benchmark", "measure", "speed", "perf"]),
    ("inspect", &["info", "describe", "metadata", "gpus", "devices"]),
    ("plan", &["memory", "estimate", "fit", "requirements", "size"]),
    ("perplexity", &["ppl", "eval", "evaluate"]),
    ("calibrate", &["imatrix"]),
    ("prompt", &["template", "render", "tokenize", "tokenise"]),
    ("pull", &["download", "fetch", "get", "install", "add"]),
    ("rm", &["remove", "delete", "uninstall", "del", "prune", "unlink"]),
    (
        "models",
        &["model", "tags", "search", "library", "catalog", "catalogue", "cache", "recommend"],
    ),
    ("ps", &["status", "top", "running", "processes", "slots"]),
    ("verify", &["checksum", "validate"]),
    ("doctor", &["diagnose", "env", "system"]),
    ("completions", &["complete-shell", "shell"]),
];

/// Words for what this program has no command for.
const ADVICE: &[(&[&str], &str)] = &[
    (
        &["stop", "kill", "quit", "unload", "down", "shutdown"],
        "nothing runs in the background: Ctrl-C or SIGTERM ends moeflux serve",
    ),
    (&["push", "upload"], "moeflux uploads nothing: hf upload does"),
    (
        &["cp", "copy", "mv"],
        "models are folders and files: copy them as such, or name them at serve (--model-name)",
    ),
    (
        &["signin", "login", "signup", "signout", "logout", "auth"],
        "the Hub's token is taken from HF_TOKEN, or from the file of hf auth login",
    ),
    (&["update", "upgrade"], "install it again as you did the first time"),
    (
        &["embed", "embedding", "embeddings", "rerank"],
        "models here answer; for embeddings run a model of them in another program",
    ),
    (
        &["train", "finetune", "lora", "fuse"],
        "moeflux does not train: run what another program has trained",
    ),
];

/// What `word` means among the commands of `program`: first what other programs mean by it, then the
/// command whose name is nearest, if one is near enough.
pub(crate) fn meaning(word: &str, program: &Command) -> Option<Meaning> {
    let word = word.trim_start_matches("llama-").to_lowercase();
    let exists = |name: &&str| program.find_subcommand(name).is_some();
    let by_meaning =
        OTHERS.iter().find(|(_, words)| words.contains(&&word[..])).map(|(name, _)| *name);
    if let Some(name) = by_meaning.filter(exists) {
        return Some(Meaning::Command(name.to_owned()));
    }
    if let Some((_, advice)) = ADVICE.iter().find(|(words, _)| words.contains(&&word[..])) {
        return Some(Meaning::Advice(advice));
    }
    let commands = program.get_subcommands();
    let mut names: Vec<&str> = commands
        .flat_map(|sub| [sub.get_name()].into_iter().chain(sub.get_all_aliases()))
        .collect();
    names.extend(["help", "version"]);
    let near = names.into_iter().filter(|name| is_near(&word, name));
    let nearest = near.min_by_key(|name| strsim::damerau_levenshtein(&word, name))?;
    Some(Meaning::Command(nearest.to_owned()))
}

/// Whether a word is a name with a letter too many, too few, another, or two in each other's place; two
/// such mistakes in a long one; or the beginning of it.
fn is_near(word: &str, name: &str) -> bool {
    let n_letters = word.chars().count();
    let allowed = match n_letters.min(name.len()) {
        ..3 => 0,
        // Of three letters one is a third: then at least the first is right.
        3 => usize::from(word.chars().next() == name.chars().next()),
        4..=5 => 1,
        _ => 2,
    };
    let is_beginning = n_letters >= 3 && name.starts_with(word);
    is_beginning || (allowed > 0 && strsim::damerau_levenshtein(word, name) <= allowed)
}
