//! From `--model` to an open engine.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use moeflux_engine::hub::{self, HubEnv};
use moeflux_engine::synth::SynthOptions;
use moeflux_engine::{Drafts, Engine, EngineOptions, Inspection, pack};

use crate::args::{ModelArgs, PromptCacheArgs, ShapeArgs};
use crate::error::UsageError;
use crate::progress::{Bar, Unit};
use crate::report::note;
use crate::{demo, paths};

/// Finds the model's files: what exists under that name, else what the Hub has
/// under it, else, without a name, the demo model.
pub(crate) fn locate(model: Option<&str>, is_quiet: bool) -> Result<PathBuf> {
    let Some(model) = model else { return demo::unpacked() };
    let path = Path::new(model);
    if path.exists() {
        return Ok(path.to_path_buf());
    }
    if !hub::is_hub_name(model) {
        let message = format!("--model {model:?}: no such file or directory, and no org/name");
        return Err(UsageError(message).into());
    }
    let env = HubEnv::from_lookup(|name| std::env::var(name).ok());
    if !["http://", "https://"].iter().any(|it| env.endpoint.starts_with(it)) {
        let message = format!(
            "HF_ENDPOINT {:?}: an address is needed, such as https://huggingface.co",
            env.endpoint
        );
        return Err(UsageError(message).into());
    }
    let mut bar = Bar::new(model, Unit::Bytes, is_quiet);
    let path = hub::resolve(model, &env, &mut |progress| match progress {
        hub::Progress::Waiting { lock } => {
            note(is_quiet, &format!("waiting for another download ({})", lock.display()));
        }
        hub::Progress::Bytes { file, done, total, .. } => {
            bar.set_label(file);
            bar.set(done, total);
        }
    })?;
    Ok(path)
}

/// Inspects a model, or a shape without one.
pub(crate) fn inspect(args: &ModelArgs, shape: &ShapeArgs, is_quiet: bool) -> Result<Inspection> {
    let options = args.engine_options(false)?;
    let Some(name) = &shape.shape else {
        let path = locate(args.model.as_deref(), is_quiet)?;
        if args.verify {
            verify(&path, is_quiet)?;
        }
        return Ok(moeflux_engine::inspect(&path, &options)?);
    };
    let dir = ScratchDir::new(name);
    let hollow = SynthOptions { bits: shape.bits, is_hollow: true, ..SynthOptions::default() };
    moeflux_engine::synthesise(name, &dir.0, &hollow, &mut |_| {}).context("--shape")?;
    let mut facts = moeflux_engine::inspect(&dir.0, &options)?;
    // Its files are gone with their directory.
    facts.root = PathBuf::from(name);
    facts.files.clear();
    Ok(facts)
}

/// A directory for files without content, removed when dropped.
struct ScratchDir(PathBuf);

impl ScratchDir {
    fn new(name: &str) -> ScratchDir {
        let name: String = name.chars().filter(|it| it.is_ascii_alphanumeric()).collect();
        ScratchDir(std::env::temp_dir().join(format!("moeflux-{}-{name}", std::process::id())))
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        // What stays behind takes no room.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Opens the model for who makes no text.
pub(crate) fn open(args: &ModelArgs, exact: bool, is_quiet: bool) -> Result<Engine> {
    let options = EngineOptions { drafts: Drafts::Off, ..args.engine_options(exact)? };
    open_with(args, options, is_quiet)
}

/// Opens the model for conversations.
pub(crate) fn open_cached(
    args: &ModelArgs,
    cache: &PromptCacheArgs,
    sessions: usize,
    is_quiet: bool,
) -> Result<Engine> {
    let prompt_cache = cache.options();
    // Without a place for caches every start is a cold one.
    let expert_stats = match cache.no_expert_stats {
        true => None,
        false => paths::cache_dir().ok().map(|it| it.join("experts")),
    };
    let plain = args.engine_options(false)?;
    let options = EngineOptions { prompt_cache, expert_stats, sessions: Some(sessions), ..plain };
    open_with(args, options, is_quiet)
}

/// Opens the model with options of the caller's.
pub(crate) fn open_with(
    args: &ModelArgs,
    options: EngineOptions,
    is_quiet: bool,
) -> Result<Engine> {
    let path = locate(args.model.as_deref(), is_quiet)?;
    if args.verify {
        verify(&path, is_quiet)?;
    }
    let mut bar = Bar::new("loading", Unit::Bytes, is_quiet);
    let engine =
        Engine::open_with_progress(&path, &options, &mut |done, total| bar.set(done, total))?;
    drop(bar);
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

fn verify(path: &Path, is_quiet: bool) -> Result<()> {
    let mut bar = Bar::new("verifying", Unit::Bytes, is_quiet);
    let n = pack::verify(path, &mut |it| bar.set(it.done, it.total)).context("--verify")?;
    drop(bar);
    note(is_quiet, &format!("checksums agree ({})", crate::bytes::show(n)));
    Ok(())
}
