//! From what a user wrote for a model to the directory of its files, or to its GGUF file.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use moeflux_convert::synth::shape_names;
use moeflux_engine::EngineError;
use moeflux_hub::{Chosen, Download, Event, Found, HubEnv, Remote, Repo, Wanted};

use crate::bytes::show;
use crate::demo;
use crate::error::UsageError;
use crate::interrupt::RemovedOnInterrupt;
use crate::progress::{Bar, Transfer, Unit};
use crate::published;
use crate::report::{chain, note};
use crate::words::{did_you_mean, one_line};

/// What is said of a repository that has none of the files of a tokenizer.
pub(crate) const NO_TOKENIZER: &str = "the repository has no tokenizer (tokenizer.json, \
                            tiktoken.model, vocab.json with merges.txt, or tokenizer.model): no \
                            text can be made";

/// Where a model is, before anything of it is downloaded.
pub(crate) enum Place {
    /// A file or a directory.
    Here(PathBuf),
    /// A model on the Hub.
    Hub(Box<Remote>),
}

/// Finds a model's files and downloads them if need be. `model` is a path, or a name or an
/// address on the Hub; without one it is the demo model. `flag` is what errors name.
pub(crate) fn locate(model: Option<&str>, flag: &str, is_quiet: bool) -> Result<PathBuf> {
    match place(model, flag, is_quiet, Hurry::Newest)? {
        Place::Here(path) => Ok(path),
        Place::Hub(remote) => fetch(&remote, is_quiet),
    }
}

/// A model of the Hub that is in its cache now.
pub(crate) struct Pulled {
    /// What names it: `org/name`, or `org/name:Q4_K_M`.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    /// Whether nothing was missing.
    pub(crate) was_here: bool,
}

/// Downloads what the cache lacks of a model on the Hub.
pub(crate) fn pull(name: &str, is_quiet: bool) -> Result<Pulled> {
    match place(Some(name), "NAME", is_quiet, Hurry::Newest)? {
        Place::Here(path) => Ok(Pulled { name: name.to_owned(), path, was_here: true }),
        Place::Hub(remote) => {
            let needed = remote.describe();
            let path = fetch(&remote, is_quiet)?;
            Ok(Pulled { name: needed.name(), path, was_here: needed.missing_bytes == 0 })
        }
    }
}

/// Downloads what is missing, if the model runs.
fn fetch(remote: &Remote, is_quiet: bool) -> Result<PathBuf> {
    let needed = remote.describe();
    if needed.missing_bytes > 0 {
        needed.check_room()?;
        check_remote(remote, &needed, is_quiet)?;
    }
    download(remote, is_quiet)
}

/// Refuses a model that cannot be run: it is not worth its download.
pub(crate) fn check_remote(remote: &Remote, needed: &Download, is_quiet: bool) -> Result<()> {
    check_headers(&read_headers(remote, is_quiet)?, needed)
}

/// As [`check_remote`], by headers that were read.
pub(crate) fn check_headers(headers: &moeflux_hub::Headers, needed: &Download) -> Result<()> {
    let checked = moeflux_engine::check(headers.model());
    checked.map_err(|err| named_as_on_hub(err, headers, needed)).context("not downloaded")
}

/// Which copy is wanted of a model that is in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hurry {
    /// The one that the Hub has now.
    Newest,
    /// One that is complete, without a question to the Hub.
    Any,
}

/// What names a model: a path, or a name on the Hub.
pub(crate) enum Named<'a> {
    /// A file or a directory.
    Path(PathBuf),
    /// A name or an address on the Hub.
    Hub(&'a str, Box<HubEnv>),
}

/// Reads what was written for a model; without it that is the demo model. The network is not used.
pub(crate) fn named<'a>(model: Option<&'a str>, flag: &str) -> Result<Named<'a>> {
    let Some(model) = model else { return Ok(Named::Path(demo::unpacked()?)) };
    let path = Path::new(model);
    match path.try_exists() {
        Ok(true) => {
            let snapshot = moeflux_hub::snapshot_in(path);
            return Ok(Named::Path(snapshot.unwrap_or_else(|| path.to_path_buf())));
        }
        Ok(false) => {}
        // A name that is longer than a path may be is for the Hub's rules to refuse.
        Err(source) if source.kind() == io::ErrorKind::InvalidFilename => {}
        Err(source) if source.kind() == io::ErrorKind::NotADirectory => {}
        Err(source) => return Err(source).context(format!("{flag} {model:?}")),
    }
    let env = hub_env()?;
    let model = hub_name(model, flag, &env)?;
    Ok(Named::Hub(model, Box::new(env)))
}

/// Finds a model and downloads nothing.
pub(crate) fn place(
    model: Option<&str>,
    flag: &str,
    is_quiet: bool,
    hurry: Hurry,
) -> Result<Place> {
    let (model, env) = match named(model, flag)? {
        Named::Path(path) => return Ok(Place::Here(path)),
        Named::Hub(model, env) => (model, env),
    };
    if hurry == Hurry::Any
        && let Some(dir) = moeflux_hub::cached(model, &env)?
    {
        return Ok(Place::Here(dir));
    }
    let found = moeflux_hub::find(model, &env, &mut |event| tell(&event, is_quiet))?;
    Ok(match found {
        Found::Here(path) => Place::Here(path),
        Found::Remote(remote) => Place::Hub(remote),
    })
}

/// The name on the Hub that is meant by one that is no path here, which may be a short one.
///
/// # Errors
/// Where it is none, which is a matter of the command line.
pub(crate) fn hub_name<'a>(model: &'a str, flag: &str, env: &HubEnv) -> Result<&'a str> {
    let model = published::by_name(model).map_or(model, |found| &found.model);
    if !moeflux_hub::is_address(model, &env.endpoint) {
        refuse_path(model, flag)?;
    }
    Repo::parse(model, &env.endpoint)
        .map_err(|problem| UsageError(format!("{flag}: {problem}")))?;
    Ok(model)
}

/// Where the Hub is and where its cache is, by the variables of its own tools.
pub(crate) fn hub_env() -> Result<HubEnv> {
    let env = HubEnv::from_lookup(|name| std::env::var(name).ok());
    let host = ["http://", "https://"].iter().find_map(|start| env.endpoint.strip_prefix(start));
    if host.is_none_or(str::is_empty) {
        let message = format!(
            "HF_ENDPOINT {:?}: an address is needed, such as https://huggingface.co",
            env.endpoint
        );
        return Err(UsageError(message).into());
    }
    Ok(env)
}

/// Refuses what is written like a path, or begins with something that exists: a typing error in a
/// path must not become a download.
fn refuse_path(model: &str, flag: &str) -> Result<()> {
    let path = Path::new(model);
    let problem = if model.is_empty() {
        "nothing is named: write a path, or org/name on the Hub".to_owned()
    } else if path.is_symlink() {
        "the link leads to nothing that exists".to_owned()
    } else if model.starts_with('~') {
        "~ was not replaced by the home directory: write it outside of quotes, or use $HOME".into()
    } else if is_written_as_path(model) || first_part_exists(path) {
        format!("no such file or directory{}", with_advice(path))
    } else if !model.contains('/') {
        unknown_name(model)
    } else if alternative(path).is_some_and(|path| path.exists()) {
        let address = hub_address(model).unwrap_or_default();
        format!("no such file or directory{}{address}", with_advice(path))
    } else {
        return Ok(());
    };
    Err(UsageError(format!("{flag} {model:?}: {problem}")).into())
}

/// What is said of a word that is no path, no name on the Hub and no short name.
fn unknown_name(model: &str) -> String {
    let advice = with_advice(Path::new(model));
    if let Some(near) = published::near(model).filter(|_| advice.is_empty()) {
        return format!(
            "no file or directory and no published model has this name; did you mean {near}? (moeflux \
             models lists short names; a model on the Hub is written org/name)"
        );
    }
    let shape = shape_names().find(|name| *name == model).filter(|_| advice.is_empty());
    let shape = shape.map_or(String::new(), |name| {
        format!("; the shape of this name is --shape {name} of plan, inspect and synth")
    });
    format!("no such file or directory (a model on the Hub is written org/name){advice}{shape}")
}

/// Whether no name on the Hub looks like this.
fn is_written_as_path(model: &str) -> bool {
    // org/name:file.gguf
    let is_choice = Repo::parse(model, moeflux_hub::DEFAULT_ENDPOINT)
        .is_ok_and(|repo| matches!(repo.gguf, Some(Wanted::File(_))) && model.contains(':'));
    if is_choice {
        return false;
    }
    let ends = [".safetensors", ".json", ".gguf", ".bin", ".pt", ".pth", "/"];
    let starts = ["/", "./", "../"];
    let is_dots = model == "." || model == "..";
    let has_drive =
        model.as_bytes().get(1) == Some(&b':') && model.as_bytes()[0].is_ascii_alphabetic();
    is_dots
        || has_drive
        || model.contains('\\')
        || starts.iter().any(|start| model.starts_with(start))
        || ends.iter().any(|end| model.to_lowercase().ends_with(end))
}

fn first_part_exists(path: &Path) -> bool {
    let mut parts = path.components();
    let first = parts.next().map(|part| PathBuf::from(part.as_os_str()));
    parts.next().is_some() && first.is_some_and(|first| first.symlink_metadata().is_ok())
}

/// What is there in place of a path that does not exist; and how to name the Hub all the same.
fn with_advice(path: &Path) -> String {
    let proposal = alternative(path)
        .map(|proposed| format!("; did you mean {:?}?", proposed.display().to_string()));
    let address = path.to_str().filter(|_| first_part_exists(path)).and_then(hub_address);
    proposal.unwrap_or_default() + &address.unwrap_or_default()
}

/// The path with the first part that does not exist replaced by the name there that is most like it.
fn alternative(path: &Path) -> Option<PathBuf> {
    let is_here = |dir: &&Path| dir.as_os_str().is_empty() || dir.is_dir();
    let (missing, dir) =
        path.ancestors().zip(path.ancestors().skip(1)).find(|(_, dir)| is_here(dir))?;
    let name = missing.file_name()?.to_string_lossy();
    let best = dir.join(most_alike(&name, dir)?);
    let rest = path.strip_prefix(missing).ok().filter(|rest| !rest.as_os_str().is_empty());
    Some(rest.map_or(best.clone(), |rest| best.join(rest)))
}

/// How a name is written that is on the Hub in any case.
fn hub_address(name: &str) -> Option<String> {
    Repo::parse(name, moeflux_hub::DEFAULT_ENDPOINT).ok()?;
    Some(format!(" (for the Hub's model write hf://{name})"))
}

/// The name in `dir` that is most like `name`.
fn most_alike(name: &str, dir: &Path) -> Option<String> {
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    let names = dir.read_dir().ok()?.take(10_000).flatten();
    let names: Vec<String> =
        names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    did_you_mean(name, names.iter().map(String::as_str)).map(str::to_owned)
}

/// Reads the headers of a model on the Hub.
pub(crate) fn read_headers(remote: &Remote, is_quiet: bool) -> Result<moeflux_hub::Headers> {
    let mut bar = Bar::new("reading headers", Unit::Files, is_quiet);
    let mut removal = None;
    let headers = remote.headers(&mut |event| match event {
        Event::HeadersFolder { dir } => removal = RemovedOnInterrupt::new(dir),
        Event::Headers { done, total } => bar.set(done as u64, total as u64),
        other => tell(&other, is_quiet),
    })?;
    drop(removal);
    Ok(headers)
}

/// An error about files whose headers were read, where they are named as on the Hub: the directory
/// that holds the headers is about to be removed.
pub(crate) fn named_as_on_hub(
    err: EngineError,
    headers: &moeflux_hub::Headers,
    download: &Download,
) -> anyhow::Error {
    let err = anyhow::Error::from(err);
    let text = chain(&err);
    let root = headers.root().display().to_string();
    if !text.contains(&root) {
        return err;
    }
    let name = format!("{}@{}", download.repo, &download.commit[..7]);
    anyhow::Error::msg(text.replace(&root, &name))
}

fn download(remote: &Remote, is_quiet: bool) -> Result<PathBuf> {
    let mut transfer = Transfer::new(is_quiet);
    let dir = remote.download(&mut |event| match event {
        Event::Start { download } => {
            transfer.say(&announce(download));
            if !download.has_tokenizer {
                transfer.say(&format!("warning: {NO_TOKENIZER}"));
            }
            transfer.start(&download.repo, download.bytes - download.missing_bytes);
        }
        Event::Bytes { done, total, received } => transfer.set(done, total, received),
        other => transfer.say(&in_words(&other).unwrap_or_default()),
    })?;
    transfer.finish();
    Ok(dir)
}

fn announce(download: &Download) -> String {
    let Download { commit, bytes, missing_bytes, .. } = download;
    let here = bytes - missing_bytes;
    let rest = match here {
        0 => String::new(),
        here => format!(" ({} are here already)", show(here)),
    };
    format!(
        "downloading {} (commit {}): {} in {}{rest}, to {}",
        download.name(),
        &commit[..7],
        show(*bytes),
        n_files(download),
        room(download),
    )
}

/// How many files a download has, in words.
pub(crate) fn n_files(download: &Download) -> String {
    match download.n_files {
        1 => String::from("one file"),
        n => format!("{n} files"),
    }
}

/// The cache and what is free there.
pub(crate) fn room(download: &Download) -> String {
    let dir = download.dir.display();
    match download.free_bytes {
        Some(free) => format!("{dir}, where {} are free", show(free)),
        None => dir.to_string(),
    }
}

fn tell(event: &Event<'_>, is_quiet: bool) {
    if let Some(words) = in_words(event) {
        note(is_quiet, &words);
    }
}

/// What an event that needs no bar is in a sentence.
pub(crate) fn in_words(event: &Event<'_>) -> Option<String> {
    sentence(event).map(|text| one_line(&text))
}

fn sentence(event: &Event<'_>) -> Option<String> {
    Some(match event {
        Event::Stale { reason } => {
            format!("warning: {reason}; using the copy from earlier")
        }
        Event::Chosen(chosen) => return chosen_in_words(chosen),
        Event::Waiting { lock } => {
            format!("waiting for another download of this model ({} is locked)", lock.display())
        }
        Event::Retrying(retry) => format!(
            "{}: retrying in {} ({}), attempt {} of {}",
            retry.what,
            seconds(retry.wait.as_secs_f64()),
            retry.reason,
            retry.attempt,
            retry.n_attempts,
        ),
        _ => return None,
    })
}

/// Which GGUF file is taken, where that is not what was asked for, and what is left out.
fn chosen_in_words(chosen: &Chosen) -> Option<String> {
    let Chosen { repo, label, path, is_default, passed_over, .. } = chosen;
    let mut words = Vec::new();
    if *is_default {
        words.push(format!(
            "{repo} has several GGUF files: {path} is taken (write {repo}:TAG for another than \
             {label})"
        ));
    }
    match &passed_over[..] {
        [] => {}
        [one] => words.push(format!("{one} is passed over: the model runs without it")),
        [one, others @ ..] => words.push(format!(
            "{one} and {} more are passed over: the model runs without them",
            others.len()
        )),
    }
    (!words.is_empty()).then(|| words.join("; "))
}

fn seconds(secs: f64) -> String {
    if secs.fract() == 0.0 { format!("{secs:.0} s") } else { format!("{secs:.1} s") }
}
