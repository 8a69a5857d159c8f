//! `moeflux keys`: the keys with names of a server.

use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use moeflux_core::FileLock;
use moeflux_server::{KeyFile, KeyLimits, NamedKey};
use serde_json::json;

use super::print;
use crate::args::{KeysAction, KeysArgs};
use crate::error::UsageError;
use crate::{paths, report};

/// How long another `moeflux keys` may take with the file.
const PATIENCE: Duration = Duration::from_secs(5);

/// Between two attempts to lock the file.
const PAUSE: Duration = Duration::from_millis(20);

pub(crate) fn run(args: &KeysArgs) -> Result<()> {
    let KeysArgs { requests_per_minute, tokens_per_minute, sessions, .. } = *args;
    let limits = KeyLimits { requests_per_minute, tokens_per_minute, sessions };
    if args.action != KeysAction::Add && limits != KeyLimits::default() {
        return Err(
            UsageError(String::from("limits are given with `moeflux keys add NAME`")).into()
        );
    }
    if args.action == KeysAction::List && args.name.is_some() {
        return Err(UsageError(String::from("list takes no name: it shows all keys")).into());
    }
    let path = match &args.keys {
        Some(path) => path.clone(),
        None => paths::keys_file()?,
    };
    let name = args.name.as_deref().unwrap_or_default();
    match args.action {
        KeysAction::Add => add(&path, name, limits),
        KeysAction::List => list(&path, args.json),
        KeysAction::Remove => remove(&path, name),
    }
}

fn add(path: &Path, name: &str, limits: KeyLimits) -> Result<()> {
    let _lock = lock(path)?;
    let mut file = if path.exists() { read(path)? } else { KeyFile::default() };
    let key = file.add(name, limits)?;
    write(&file, path)?;
    report::note(
        false,
        &format!(
            "{name} has this key, which is shown only now; {} has its hash: moeflux serve --keys {}",
            path.display(),
            path.display()
        ),
    );
    Ok(print(&format!("{key}\n"))?)
}

fn remove(path: &Path, name: &str) -> Result<()> {
    let _lock = lock(path)?;
    let mut file = read(path)?;
    file.remove(name)?;
    write(&file, path)?;
    Ok(print(&format!("removed {name}\n"))?)
}

fn list(path: &Path, as_json: bool) -> Result<()> {
    let file = read(path)?;
    if as_json {
        let shown = |key: &NamedKey| json!({"name": key.name, "created": key.created, "limits": key.limits});
        let keys: Vec<_> = file.keys.iter().map(shown).collect();
        return Ok(print(&format!("{:#}\n", json!({"keys": keys})))?);
    }
    let head = ["name", "made", "requests/min", "tokens/min", "sessions"].map(String::from);
    let limit = |limit: Option<u32>| limit.map_or_else(|| String::from("-"), |n| n.to_string());
    let row = |key: &NamedKey| {
        let KeyLimits { requests_per_minute, tokens_per_minute, sessions } = key.limits;
        let made = key.created.get(..10).unwrap_or(&key.created).to_owned();
        let limits = [requests_per_minute, tokens_per_minute, sessions].map(limit);
        let [requests, tokens, sessions] = limits;
        [key.name.clone(), made, requests, tokens, sessions]
    };
    let rows: Vec<[String; 5]> = std::iter::once(head).chain(file.keys.iter().map(row)).collect();
    let mut text = String::new();
    for row in &rows {
        for (i, cell) in row.iter().enumerate() {
            let width = rows.iter().map(|row| row[i].len()).max().unwrap_or(0);
            let padded = if i < 2 { format!("{cell:<width$}") } else { format!("{cell:>width$}") };
            text += &format!("{}{padded}", if i == 0 { "" } else { "  " });
        }
        text = text.trim_end().to_owned() + "\n";
    }
    Ok(print(&text)?)
}

/// Waits for others that change the file.
fn lock(path: &Path) -> Result<FileLock> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".lock");
    let at: PathBuf = path.with_file_name(name);
    let began = Instant::now();
    loop {
        let lock = FileLock::acquire(&at);
        let lock = lock.with_context(|| format!("cannot lock {} (--keys)", path.display()))?;
        match lock {
            Some(lock) => return Ok(lock),
            None if began.elapsed() > PATIENCE => {
                bail!("{} is being changed by another process: try again", path.display())
            }
            None => sleep(PAUSE),
        }
    }
}

fn read(path: &Path) -> Result<KeyFile> {
    KeyFile::read(path).context("--keys")
}

fn write(file: &KeyFile, path: &Path) -> Result<()> {
    file.write(path).context("--keys")
}
