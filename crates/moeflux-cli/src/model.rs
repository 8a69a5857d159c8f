//! From `--model` to an open engine.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use moeflux_convert::pack;
use moeflux_convert::synth::{self, SynthOptions};
use moeflux_engine::{Device, Engine, EngineOptions, Inspection, Speculation, dialects};
use moeflux_hub::{Download, Remote};
use moeflux_text::{TextSource, Tokenizer};

use crate::args::{Kept, ModelArgs, ShapeArgs};
use crate::error::UsageError;
use crate::interrupt::RemovedOnInterrupt;
use crate::locate::{self, Hurry, Place};
use crate::progress::{Bar, Unit};
use crate::report::{device, note, software_device};
use crate::values::Sessions;
use crate::{paths, rates};

/// What an inspection found, and where.
pub(crate) struct Inspected {
    pub(crate) facts: Inspection,
    /// What a download of the model would take; `None` where its files are here.
    pub(crate) download: Option<Download>,
    /// Whether the files that were read have their weights.
    pub(crate) has_content: bool,
    /// What the tokenizer is read from, or why no text can be made; `None` for a shape.
    pub(crate) tokenizer: Option<Result<String, String>>,
}

/// Inspects a model, or a shape without one. Of a model on the Hub only configs and headers are
/// read.
pub(crate) fn inspect(args: &ModelArgs, shape: &ShapeArgs, is_quiet: bool) -> Result<Inspected> {
    inspect_with(args, shape, &args.engine_options(false)?, is_quiet)
}

/// As [`inspect`], with options of the caller's.
pub(crate) fn inspect_with(
    args: &ModelArgs,
    shape: &ShapeArgs,
    options: &EngineOptions,
    is_quiet: bool,
) -> Result<Inspected> {
    if let Some(name) = &shape.shape {
        return inspect_shape(name, shape.bits, options);
    }
    match locate::place(args.model.as_deref(), "--model", is_quiet, Hurry::Any)? {
        Place::Here(path) => {
            if args.verify {
                verify(&path, is_quiet)?;
            }
            let facts = moeflux_engine::inspect(&path, options)?;
            let tokenizer = Some(describe_tokenizer(&facts.text));
            Ok(Inspected { facts, download: None, has_content: true, tokenizer })
        }
        Place::Hub(remote) => {
            if args.verify {
                let message = "--verify: the model is not downloaded: leave --verify out";
                return Err(UsageError(String::from(message)).into());
            }
            inspect_remote(&remote, options, is_quiet)
        }
    }
}

impl Inspected {
    /// Where the drive is that experts are read from.
    pub(crate) fn place(&self) -> rates::Place<'_> {
        if self.has_content { rates::Place::Model(&self.facts.root) } else { rates::Place::Hub }
    }
}

fn inspect_remote(remote: &Remote, options: &EngineOptions, is_quiet: bool) -> Result<Inspected> {
    let headers = locate::read_headers(remote, is_quiet)?;
    let download = remote.describe();
    let facts = moeflux_engine::inspect(headers.model(), options);
    let mut facts = facts.map_err(|err| locate::named_as_on_hub(err, &headers, &download))?;
    let files = facts.text.names();
    let tokenizer = Some(files.map_err(|_| locate::NO_TOKENIZER.to_owned()));
    // The headers' directory goes away; files are named as on the Hub.
    for (path, _) in &mut facts.files {
        if let Ok(name) = path.strip_prefix(headers.root()) {
            *path = name.to_path_buf();
        }
    }
    facts.root = PathBuf::from(format!("{}@{}", download.repo, download.commit));
    Ok(Inspected { facts, download: Some(download), has_content: false, tokenizer })
}

pub(crate) fn inspect_shape(name: &str, bits: u8, options: &EngineOptions) -> Result<Inspected> {
    let dir = ScratchDir::new(name);
    let hollow = SynthOptions { bits, is_hollow: true, ..SynthOptions::default() };
    moeflux_convert::synthesise(name, &dir.path, &hollow, &mut |_| {}).context("--shape")?;
    let mut facts = moeflux_engine::inspect(&dir.path, options)?;
    // Its files are gone with their directory.
    facts.root = PathBuf::from(name);
    facts.files.clear();
    Ok(Inspected { facts, download: None, has_content: false, tokenizer: None })
}

/// The files of a tokenizer, how many tokens it has, and the names of its chat templates.
fn describe_tokenizer(source: &TextSource) -> Result<String, String> {
    let tokenizer = Tokenizer::open(source, dialects()).map_err(|err| err.to_string())?;
    let files = source.names().map_err(|err| err.to_string())?;
    let names: Vec<&str> = tokenizer.chat_template_names().collect();
    // A template is expected where the vocabulary is; elsewhere its file is named.
    let elsewhere = tokenizer
        .template_file()
        .filter(|file| is_apart(source, file))
        .and_then(|file| file.file_name())
        .map_or(String::new(), |name| format!(" of {}", name.to_string_lossy()));
    let templates = match names.as_slice() {
        [] => String::from("no chat template"),
        ["default"] => format!("with a chat template{elsewhere}"),
        names => format!("chat templates {}{elsewhere}", names.join(", ")),
    };
    Ok(format!("{files}, {} tokens, {templates}", tokenizer.vocab_size()))
}

/// Whether a template's file is another than the GGUF file with the vocabulary.
fn is_apart(source: &TextSource, template: &Path) -> bool {
    matches!(source, TextSource::Gguf(file) if file != template)
}

/// A directory for files without content, removed when dropped.
struct ScratchDir {
    path: PathBuf,
    /// Of the directory, and of that in which its files are made.
    removals: [Option<RemovedOnInterrupt>; 2],
}

impl ScratchDir {
    fn new(name: &str) -> ScratchDir {
        let name: String = name.chars().filter(|c| c.is_ascii_alphanumeric()).collect();
        let path = std::env::temp_dir().join(format!("moeflux-{}-{name}", std::process::id()));
        let removals = [path.clone(), synth::partial_of(&path)];
        ScratchDir { path, removals: removals.map(|path| RemovedOnInterrupt::new(&path)) }
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        // What stays behind takes no room.
        let _ = std::fs::remove_dir_all(&self.path);
        self.removals = [None, None];
    }
}

/// Opens the model for a command that generates no text.
pub(crate) fn open(args: &ModelArgs, exact: bool, is_quiet: bool) -> Result<Engine> {
    let options = args.engine_options(exact)?.speculation(Speculation::Off);
    open_with(args, options, is_quiet)
}

/// Opens the model for conversations.
pub(crate) fn open_cached(
    args: &ModelArgs,
    kept: Kept,
    sessions: impl Into<Sessions>,
    is_quiet: bool,
) -> Result<Engine> {
    // Without a place for caches every start is a cold one.
    let cache = paths::cache_dir().ok().filter(|_| kept.expert_stats);
    let expert_stats = cache.map(|dir| dir.join("experts"));
    let plain = args.engine_options(false)?;
    let plain = plain.quick_start(true);
    let mut options = plain.prompt_cache(kept.prompts).expert_stats(expert_stats);
    options.memory.prompts = kept.memory;
    sessions.into().set(&mut options.memory);
    open_with(args, options, is_quiet)
}

/// Opens the model with options of the caller's.
pub(crate) fn open_with(
    args: &ModelArgs,
    options: EngineOptions,
    is_quiet: bool,
) -> Result<Engine> {
    let path = locate::locate(args.model.as_deref(), "--model", is_quiet)?;
    if args.verify {
        verify(&path, is_quiet)?;
    }
    let mut bar = Bar::new("loading", Unit::Bytes, is_quiet);
    let engine =
        Engine::open_with_progress(&path, &options, &mut |done, total| bar.set(done, total))?;
    drop(bar);
    device(is_quiet, engine.device());
    software_device(is_quiet, engine.device());
    for warning in engine.warnings() {
        note(is_quiet, &format!("warning: {warning}"));
    }
    let shape = engine.shape();
    if shape.top_k != shape.config_top_k {
        let (own, now) = (shape.config_top_k, shape.top_k);
        // The answer is another one: said even where statistics are not wanted.
        note(
            false,
            &format!("warning: {now} experts a token instead of {own}: the model's output changes"),
        );
    }
    Ok(engine)
}

/// Replaces `auto` by the device of the model, for those who need to know it before they open it.
pub(crate) fn choose_device(
    args: &ModelArgs,
    options: &mut EngineOptions,
    is_quiet: bool,
) -> Result<()> {
    if options.compute.device == Device::Auto {
        let path = locate::locate(args.model.as_deref(), "--model", is_quiet)?;
        let choice = moeflux_engine::choose_device(&path, options)?;
        device(is_quiet, &choice);
        options.compute.device = choice.device;
    }
    Ok(())
}

fn verify(path: &Path, is_quiet: bool) -> Result<()> {
    let mut bar = Bar::new("verifying", Unit::Bytes, is_quiet);
    let n = pack::verify(path, &mut |progress| bar.set(progress.done, progress.total))
        .context("--verify")?;
    drop(bar);
    note(is_quiet, &format!("checksums agree ({})", crate::bytes::show(n)));
    Ok(())
}
