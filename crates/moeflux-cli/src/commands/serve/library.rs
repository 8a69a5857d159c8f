//! The models of a server: those that the command line names, those of folders, and those of the
//! Hub's cache.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use anyhow::Result;
use moeflux_engine::{Engine, EngineError, EngineOptions, Inspection};
use moeflux_hub::{Event, Found, HubEnv, removal, stored};
use moeflux_server::{Library, LibraryError, LibraryModel, PullProgress};

use super::own_name::own_name;
use crate::args::{Kept, ModelArgs};
use crate::commands::models::find_in_folder;
use crate::error::UsageError;
use crate::report::chain;
use crate::values::Sessions;
use crate::{locate, model, published};

/// What the models of a server are opened with.
pub(super) struct Setup {
    pub(super) model: ModelArgs,
    pub(super) kept: Kept,
    pub(super) sessions: Sessions,
    pub(super) is_quiet: bool,
}

/// The models of a server.
pub(super) struct Shelf {
    setup: Setup,
    named: Vec<Entry>,
    folders: Vec<PathBuf>,
    hub: Option<HubEnv>,
    /// Whether the models of these files can be run, and when the files were changed.
    checked: Mutex<HashMap<PathBuf, (Option<SystemTime>, bool)>>,
}

/// A model with its files.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) model: LibraryModel,
    path: PathBuf,
    /// What names it in the Hub's cache.
    stored: Option<String>,
}

impl Shelf {
    /// An empty one, which lists what is in the Hub's cache where that is given.
    pub(super) fn new(setup: Setup, hub: Option<HubEnv>) -> Shelf {
        let (named, folders) = (Vec::new(), Vec::new());
        Shelf { setup, named, folders, hub, checked: Mutex::default() }
    }

    /// Adds what `--model` names: a folder of models, or a model, which is downloaded if need be. It
    /// is called `names` where there are any; its name is returned.
    pub(super) fn add(&mut self, model: Option<&str>, names: &[String]) -> Result<Option<String>> {
        let path = locate::locate(model, "--model", self.setup.is_quiet)?;
        let found = if path.is_dir() { find_in_folder(&path) } else { Vec::new() };
        let has_others = !found.is_empty() && !found.contains(&path);
        if has_others && moeflux_engine::check(&path).is_err() {
            check_any(&found)?;
            self.folders.push(path);
            return Ok(None);
        }
        let own = [own_name(model)];
        let names = if names.is_empty() { &own[..] } else { names };
        let is_on_hub = model.is_some_and(|model| !Path::new(model).exists());
        let aliases = model.filter(|_| is_on_hub).map(str::to_owned);
        let entry = Entry::new(path, names.to_vec(), aliases.into_iter().collect());
        let name = entry.name().to_owned();
        if self.named.iter().any(|other| other.name().eq_ignore_ascii_case(&name)) {
            let message = format!(
                "--model {}: another model that is named here is called {name}, too: rename the folder \
                 or file of one of them",
                model.unwrap_or_default()
            );
            return Err(UsageError(message).into());
        }
        self.named.push(entry);
        Ok(Some(name))
    }

    /// All models, in the order in which they were named; the first of a name has it.
    fn entries(&self) -> Vec<Entry> {
        let mut all = self.named.clone();
        for folder in &self.folders {
            let found = find_in_folder(folder);
            all.extend(found.into_iter().map(|path| Entry::in_folder(path, folder)));
        }
        if let Some(env) = &self.hub {
            all.extend(on_hub(env));
        }
        let mut names = BTreeMap::new();
        all.retain(|entry| names.insert(entry.name().to_lowercase(), ()).is_none());
        let is_named = |entry: &Entry| self.named.iter().any(|named| named.path == entry.path);
        all.retain(|entry| is_named(entry) || self.can_run(&entry.path, entry.model.modified));
        all
    }

    /// Whether a model can be run; headers are read once.
    fn can_run(&self, path: &Path, modified: Option<SystemTime>) -> bool {
        let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        match checked.get(path) {
            Some((seen, can_run)) if *seen == modified => *can_run,
            _ => {
                let can_run = moeflux_engine::check(path).is_ok();
                checked.insert(path.to_owned(), (modified, can_run));
                can_run
            }
        }
    }

    fn entry(&self, name: &str) -> Result<Entry, LibraryError> {
        let found = self.entries().into_iter().find(|entry| entry.name() == name);
        found.ok_or_else(|| LibraryError::NotFound(format!("model '{name}' not found")))
    }

    /// What opens a model.
    fn args(&self, entry: &Entry) -> ModelArgs {
        let path = entry.path.to_string_lossy().into_owned();
        let mut args = self.setup.model.clone();
        args.model = Some(path);
        args
    }

    fn options(&self, entry: &Entry) -> Result<EngineOptions> {
        let mut options = self.args(entry).engine_options(false)?;
        options.memory.prompts = self.setup.kept.memory;
        self.setup.sessions.set(&mut options.memory);
        Ok(options)
    }

    /// Opens a model.
    ///
    /// # Errors
    /// Where there is none of this name, and as opening it.
    pub(super) fn open_named(&self, name: &str) -> Result<Engine> {
        let entry = self.entry(name)?;
        let Setup { kept, sessions, is_quiet, .. } = &self.setup;
        model::open_cached(&self.args(&entry), kept.clone(), *sessions, *is_quiet)
    }
}

impl Entry {
    fn new(path: PathBuf, names: Vec<String>, aliases: Vec<String>) -> Entry {
        let (bytes, modified) = size_and_change(&path);
        let model = LibraryModel { names, aliases, bytes, modified };
        Entry { model, path, stored: None }
    }

    /// A model in a folder is called by its path there.
    fn in_folder(path: PathBuf, folder: &Path) -> Entry {
        let inner = path.strip_prefix(folder).unwrap_or(&path);
        let words = |path: &Path| path.to_string_lossy().replace('\\', "/");
        let is_gguf = inner.extension().is_some_and(|end| end.eq_ignore_ascii_case("gguf"));
        let stem = if is_gguf { inner.with_extension("") } else { inner.to_owned() };
        let aliases = vec![words(inner), own_name(path.to_str())];
        let name = words(&stem);
        Entry::new(path, vec![name], aliases)
    }

    fn name(&self) -> &str {
        self.model.names.first().map_or("", String::as_str)
    }
}

/// Refuses models of which none can be run, with what is wrong with the first.
fn check_any(paths: &[PathBuf]) -> Result<(), EngineError> {
    let mut checked = paths.iter().map(|path| moeflux_engine::check(path));
    let Some(Err(first)) = checked.next() else { return Ok(()) };
    if checked.any(|other| other.is_ok()) { Ok(()) } else { Err(first) }
}

/// The models in the Hub's cache. What cannot be read is none.
fn on_hub(env: &HubEnv) -> Vec<Entry> {
    let mut all = Vec::new();
    for found in stored(env).unwrap_or_default() {
        let is_alone = found.models.len() == 1;
        for model in found.models {
            let last = |name: &str| name.rsplit('/').next().unwrap_or_default().to_owned();
            let mut aliases = vec![last(&model.name)];
            if is_alone {
                aliases.extend([found.repo.clone(), last(&found.repo)]);
            }
            let short = published::all().iter().filter(|short| short.model == model.name);
            aliases.extend(short.map(|short| short.name.clone()));
            let names = vec![model.name.clone()];
            let modified = model.path.metadata().and_then(|facts| facts.modified()).ok();
            let about = LibraryModel { names, aliases, bytes: model.bytes, modified };
            all.push(Entry { model: about, path: model.path, stored: Some(model.name) });
        }
    }
    all
}

/// Bytes of a model's files, and when they were changed last.
fn size_and_change(path: &Path) -> (u64, Option<SystemTime>) {
    let facts = |path: &Path| path.metadata().ok().filter(std::fs::Metadata::is_file);
    let files: Vec<_> = match path.read_dir() {
        Ok(entries) => entries.flatten().filter_map(|entry| facts(&entry.path())).collect(),
        Err(_) => facts(path).into_iter().collect(),
    };
    let bytes = files.iter().map(std::fs::Metadata::len).sum();
    (bytes, files.iter().filter_map(|facts| facts.modified().ok()).max())
}

/// Why a model cannot be used, in one line.
fn failed(err: &anyhow::Error) -> LibraryError {
    match err.downcast_ref() {
        Some(LibraryError::NotFound(message)) => LibraryError::NotFound(message.clone()),
        _ => LibraryError::Failed(crate::words::one_line(&chain(err))),
    }
}

impl Library for Shelf {
    fn models(&self) -> Vec<LibraryModel> {
        self.entries().into_iter().map(|entry| entry.model).collect()
    }

    fn inspect(&self, name: &str) -> Result<Inspection, LibraryError> {
        let entry = self.entry(name)?;
        let options = self.options(&entry).map_err(|err| failed(&err))?;
        let inspected =
            moeflux_core::catch_out_of_memory(|| moeflux_engine::inspect(&entry.path, &options));
        let inspected = inspected.map_err(EngineError::OutOfMemory).and_then(|done| done);
        inspected.map_err(|err| failed(&err.into()))
    }

    fn open(&self, name: &str) -> Result<Engine, LibraryError> {
        let opened = moeflux_core::catch_out_of_memory(|| self.open_named(name));
        let opened =
            opened.map_err(|err| EngineError::OutOfMemory(err).into()).and_then(|done| done);
        opened.map_err(|err: anyhow::Error| failed(&err))
    }

    fn pull(&self, name: &str, progress: &mut dyn FnMut(PullProgress)) -> Result<(), LibraryError> {
        let Some(env) = &self.hub else { return Err(not_in_cache(name)) };
        pull(name, env, progress).map_err(|err| failed(&err))
    }

    fn remove(&self, name: &str) -> Result<(), LibraryError> {
        let entry = self.entry(name)?;
        let (Some(env), Some(stored)) = (&self.hub, &entry.stored) else {
            return Err(not_in_cache(name));
        };
        let removed = removal(stored, env).and_then(|removal| removal.run());
        removed.map_err(|err| failed(&err.into()))
    }
}

fn not_in_cache(name: &str) -> LibraryError {
    LibraryError::Refused(format!(
        "'{name}' is not of the Hub's cache: only its models are downloaded and removed here"
    ))
}

/// Downloads what the cache lacks of a model, if it can be run.
fn pull(name: &str, env: &HubEnv, progress: &mut dyn FnMut(PullProgress)) -> Result<()> {
    // Clients learn nothing of this machine's paths: what is no name on the Hub is none here.
    let name = published::by_name(name).map_or(name, |found| &found.model);
    let mut say = |status: String| progress(PullProgress { status, done: 0, total: 0 });
    let found = moeflux_hub::find(name, env, &mut |event| {
        if let Some(words) = locate::in_words(&event) {
            say(words);
        }
    })?;
    let Found::Remote(remote) = found else { return Ok(()) };
    let needed = remote.describe();
    if needed.missing_bytes > 0 {
        needed.check_room()?;
        say(String::from("reading headers"));
        locate::check_remote(&remote, &needed, true)?;
    }
    let status = format!("pulling {}", needed.name());
    remote.download(&mut |event| match event {
        Event::Bytes { done, total, .. } => {
            progress(PullProgress { status: status.clone(), done, total });
        }
        other => {
            if let Some(words) = locate::in_words(&other) {
                progress(PullProgress { status: words, done: 0, total: 0 });
            }
        }
    })?;
    Ok(())
}
