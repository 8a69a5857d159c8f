//! Conversations as files: the messages, and next to them what the model knows.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use moeflux_core::atomic_file::{self, Access, Durability};
use moeflux_core::{FileLock, private};
use moeflux_engine::Conversation;

/// A conversation's file, which no other `chat` may write to meanwhile.
pub(super) struct SessionFile {
    path: PathBuf,
    lock: FileLock,
}

impl SessionFile {
    /// Keeps other processes out of a file, which need not exist, and clears up what dead ones left of
    /// it.
    pub(super) fn open(file: &Path) -> Result<SessionFile> {
        let own = SessionFile::lock(file)?;
        own.clear_up();
        Ok(own)
    }

    /// Keeps other processes out of a file, and changes nothing of it.
    pub(super) fn lock(file: &Path) -> Result<SessionFile> {
        let path = resolve(file)?;
        check_kind(&path)?;
        check_folder(&path)?;
        let lock = FileLock::acquire(&with_suffix(&path, ".lock"));
        let lock = lock.with_context(|| {
            let dir = folder(&path).display();
            format!("{}: cannot write to the folder {dir}", file.display())
        })?;
        let Some(lock) = lock else {
            let file = file.display();
            bail!("{file}: open in another chat; end that one, or give this one another FILE");
        };
        Ok(SessionFile { path, lock })
    }

    /// Clears up what dead processes left of it, and lets no other user read it.
    pub(super) fn clear_up(&self) {
        for path in [&self.path, &snapshot_path(&self.path)] {
            atomic_file::remove_abandoned(path);
            // Earlier versions let others read it; what is missing needs no restriction.
            let _ = private::restrict(path);
        }
    }

    /// Whether a conversation would be written over a file.
    pub(super) fn is_there(&self) -> bool {
        self.path.exists()
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether this is that file, under whatever name.
    pub(super) fn is(&self, file: &Path) -> bool {
        let other = resolve(file).and_then(|path| Ok(with_suffix(&path, ".lock").canonicalize()?));
        other.is_ok_and(|other| self.lock.path().canonicalize().is_ok_and(|own| own == other))
    }
}

/// The file that a name stands for: writing must not put a file in the place of a link.
fn resolve(file: &Path) -> Result<PathBuf> {
    match file.symlink_metadata() {
        Ok(facts) if facts.is_symlink() => {
            file.canonicalize().with_context(|| file.display().to_string())
        }
        _ => Ok(file.to_path_buf()),
    }
}

/// The folder of a file.
fn folder(file: &Path) -> &Path {
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// Refuses a file in a folder that does not exist.
fn check_folder(file: &Path) -> Result<()> {
    let dir = folder(file);
    match fs::metadata(dir) {
        Ok(facts) if facts.is_dir() => Ok(()),
        Ok(_) => bail!("{}: {} is not a folder", file.display(), dir.display()),
        Err(err) if err.kind() == io::ErrorKind::NotFound => {
            bail!("{}: the folder {} does not exist: create it", file.display(), dir.display())
        }
        Err(err) => Err(err).with_context(|| file.display().to_string()),
    }
}

/// A name next to a file's.
fn with_suffix(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Where what the model knows of a conversation is kept.
pub(super) fn snapshot_path(file: &Path) -> PathBuf {
    with_suffix(file, ".snapshot")
}

/// Writes a conversation, whole or not at all.
pub(super) fn write(file: &Path, conversation: &Conversation) -> Result<()> {
    check_folder(file)?;
    let json = conversation.to_json();
    atomic_file::write(file, json.as_bytes(), Access::Private, Durability::Synced)
        .with_context(|| format!("cannot write {}", file.display()))
}

/// Reads a conversation; `None` where there is no such file.
pub(super) fn read(file: &Path) -> Result<Option<Conversation>> {
    if !check_kind(file)? {
        return Ok(None);
    }
    let name = || file.display().to_string();
    let bytes = crate::files::read(file).with_context(name)?;
    Conversation::from_slice(&bytes).map(Some).with_context(name)
}

/// Whether there is such a file. Pipes may keep one waiting, and devices never end: they are refused.
fn check_kind(file: &Path) -> Result<bool> {
    match fs::metadata(file) {
        Ok(facts) if !facts.is_file() => bail!("{}: not a regular file", file.display()),
        Ok(_) => Ok(true),
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(err) => Err(err).with_context(|| file.display().to_string()),
    }
}
