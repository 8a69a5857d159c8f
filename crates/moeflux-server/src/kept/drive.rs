//! Records on the drive: a file each, written by a thread of its own.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};
use std::time::SystemTime;
use std::{fs, io};

use moeflux_core::atomic_file::{Access, Durability, remove_abandoned_in, write};
use moeflux_core::files::read_bounded;
use moeflux_core::private;

use super::key::Key;
use super::record::{MAX_RECORD, Record};
use crate::log::LogFormat;

/// Bytes of all files; the least recently used leave.
const MAX_BYTES: u64 = 256 << 20;
/// What is left of them then.
const BYTES_LEFT: u64 = MAX_BYTES / 10 * 9;
/// The extension of the files' names.
const EXTENSION: &str = "response";
/// Bytes of a file at most: a record, and the names of its fields.
const MAX_FILE: u64 = MAX_RECORD as u64 + 4096;

/// A folder of records.
#[derive(Debug)]
pub(super) struct Drive {
    dir: PathBuf,
    /// Closed when this is dropped, which ends the thread.
    queue: Option<Sender<Job>>,
    writer: Option<JoinHandle<()>>,
}

/// What is done to a file, in the order in which it was asked for.
enum Job {
    Write(PathBuf, Arc<Record>),
    /// Removes it and says how that went.
    Remove(PathBuf, Sender<io::Result<()>>),
}

impl Drive {
    /// A folder, which is made where it is missing. Where it cannot be written to, the log says so, and
    /// records stay in memory alone.
    pub(super) fn open(dir: &Path, log: LogFormat) -> Drive {
        let dir = dir.to_owned();
        let (queue, waiting) = mpsc::channel::<Job>();
        if let Err(err) = private::create_own_dir(&dir) {
            log.log(&format!("responses are not kept in {}: {err}", dir.display()));
            return Drive { dir, queue: None, writer: None };
        }
        let folder = Folder { dir: dir.clone(), log };
        let write_all = move || {
            remove_abandoned_in(&folder.dir, |name| has_extension(Path::new(name)));
            let mut n_bytes = folder.evict();
            for job in waiting {
                match job {
                    Job::Write(path, record) => n_bytes += folder.write(&path, &record),
                    Job::Remove(path, removed) => {
                        // Who asked may be gone.
                        let _ = removed.send(remove(&path));
                    }
                }
                if n_bytes > MAX_BYTES {
                    n_bytes = folder.evict();
                }
            }
        };
        match thread::Builder::new().name(String::from("responses")).spawn(write_all) {
            Ok(writer) => Drive { dir, queue: Some(queue), writer: Some(writer) },
            Err(err) => {
                log.log(&format!("responses are not kept in {}: {err}", dir.display()));
                Drive { dir, queue: None, writer: None }
            }
        }
    }

    /// Writes a record soon.
    pub(super) fn write(&self, key: &Key, record: &Arc<Record>) {
        if let Some(queue) = &self.queue {
            // The thread ends after this.
            let _ = queue.send(Job::Write(self.path(key), Arc::clone(record)));
        }
    }

    /// Removes the file of a record, if there is one, and waits for that.
    pub(super) fn remove(&self, key: &Key) -> io::Result<()> {
        let Some(queue) = &self.queue else { return remove(&self.path(key)) };
        let (sender, removed) = mpsc::channel();
        let gone = || io::Error::other("what writes records has ended");
        queue.send(Job::Remove(self.path(key), sender)).map_err(|_| gone())?;
        removed.recv().map_err(|_| gone())?
    }

    pub(super) fn read(&self, key: &Key) -> Option<Record> {
        let path = self.path(key);
        // A file that cannot be read is one that is not there.
        let bytes = read_bounded(&path, MAX_FILE).ok()?;
        touch(&path);
        Record::from_json(key.owner.clone(), &bytes)
    }

    fn path(&self, key: &Key) -> PathBuf {
        self.dir.join(format!("{}-{}.{EXTENSION}", key.owner.word(), key.digits.to_lowercase()))
    }
}

impl Drop for Drive {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(writer) = self.writer.take() {
            // A writer that panicked has said so.
            let _ = writer.join();
        }
    }
}

/// The folder as its writer has it.
struct Folder {
    dir: PathBuf,
    /// How lines of the log are written.
    log: LogFormat,
}

struct File {
    path: PathBuf,
    n_bytes: u64,
    last_use: SystemTime,
}

impl Folder {
    /// Writes a record; its bytes.
    fn write(&self, path: &Path, record: &Record) -> u64 {
        let bytes = record.to_json();
        match write(path, &bytes, Access::Private, Durability::Cached) {
            Ok(()) => bytes.len() as u64,
            Err(err) => {
                self.log.log(&format!(
                    "a response is not kept: cannot write {}: {err}",
                    path.display()
                ));
                0
            }
        }
    }

    /// Removes the files that were not used for longest, where there are too many. The bytes of the
    /// others.
    fn evict(&self) -> u64 {
        let mut files = self.files();
        let mut n_bytes: u64 = files.iter().map(|file| file.n_bytes).sum();
        if n_bytes <= MAX_BYTES {
            return n_bytes;
        }
        files.sort_by_key(|file| file.last_use);
        for file in files {
            if n_bytes <= BYTES_LEFT {
                break;
            }
            if fs::remove_file(&file.path).is_ok() {
                n_bytes -= file.n_bytes;
            }
        }
        n_bytes
    }

    fn files(&self) -> Vec<File> {
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let files = entries.filter_map(|entry| {
            let path = entry.path();
            let facts = entry.metadata().ok().filter(|facts| facts.is_file())?;
            let last_use = facts.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            has_extension(&path).then_some(File { path, n_bytes: facts.len(), last_use })
        });
        files.collect()
    }
}

/// Removes a file, if it is there.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(err) if err.kind() != io::ErrorKind::NotFound => Err(err),
        _ => Ok(()),
    }
}

fn has_extension(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == EXTENSION)
}

/// Sets the time of the last use. Where times cannot be set, the oldest is removed first.
fn touch(path: &Path) {
    let file = fs::File::options().write(true).open(path);
    let _ = file.and_then(|file| file.set_modified(SystemTime::now()));
}
