//! Conversations as files: the messages, and beside them what the model knows.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use moeflux_engine::text::Message;
use serde_json::{Value, json};

const FORMAT: &str = "moeflux-chat";
const VERSION: u64 = 1;

/// Where what the model knows of a conversation is kept.
pub(super) fn snapshot_path(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".snapshot");
    PathBuf::from(name)
}

/// Writes the messages, whole or not at all.
pub(super) fn write(file: &Path, messages: &[Message]) -> Result<()> {
    let value = json!({"format": FORMAT, "version": VERSION, "messages": messages});
    let text = serde_json::to_string_pretty(&value)?;
    let mut name = file.as_os_str().to_owned();
    name.push(format!(".{}.partial", std::process::id()));
    let partial = PathBuf::from(name);
    let written = write_file(&partial, text.as_bytes()).and_then(|()| fs::rename(&partial, file));
    if written.is_err() {
        // Nothing to do about a second failure; the name says what it is.
        let _ = fs::remove_file(&partial);
    }
    written.with_context(|| format!("cannot write {}", file.display()))
}

fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Reads messages; `None` where there is no such file.
pub(super) fn read(file: &Path) -> Result<Option<Vec<Message>>> {
    let name = || file.display().to_string();
    match file.metadata() {
        // Pipes may keep one waiting, and devices never end.
        Ok(facts) if !facts.is_file() => bail!("{}: not a regular file", name()),
        Ok(_) => {}
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(err) => return Err(err).with_context(name),
    }
    let bytes = crate::files::read(file).with_context(name)?;
    let mut value: Value = serde_json::from_slice(&bytes).with_context(name)?;
    if value["format"] != FORMAT {
        bail!("{}: not a conversation that chat has saved", name());
    }
    if value["version"] != VERSION {
        bail!("{}: a conversation of version {}, known is {VERSION}", name(), value["version"]);
    }
    let messages = serde_json::from_value(value["messages"].take()).with_context(name)?;
    Ok(Some(messages))
}
