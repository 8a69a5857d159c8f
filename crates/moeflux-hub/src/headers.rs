//! A model's descriptions and headers without its weights.
//!
//! `plan` and `inspect` read a directory: its configs, its index, and the headers of its weights.
//! This module makes such a directory of a model on the Hub. The other bytes of the weights are
//! holes of sparse files. The directory is in the system's folder for temporary files, never in the
//! Hub's cache, and is removed when its value is dropped, so that nothing takes it for a model.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use moeflux_core::FileIdx;
use moeflux_core::gguf::parse_gguf_header;

use super::cache::create_parent;
use super::error::HubError;
use super::event::Event;
use super::listing::{Listing, RemoteFile, Source};
use super::name::is_gguf;
use super::pool::{self, Message, Worker};
use super::select;

/// Bytes that give the length of a safetensors file's header.
const PREFIX_BYTES: u64 = 8;
/// The longest header that the format allows.
const MAX_HEADER_BYTES: u64 = 100_000_000;
/// What is read of a GGUF file at first: headers of files with a tokenizer have 5 to 30 MB, those of
/// the other parts of a split one some kB.
const FIRST_BYTES: u64 = 1 << 20;
/// Requests at a time: they are short, most of their time is the network's latency.
const N_PARALLEL: usize = 8;

/// A directory with a model's descriptions and headers. Dropping it removes the directory.
#[derive(Debug)]
pub struct Headers {
    root: PathBuf,
    model: PathBuf,
    _dir: tempfile::TempDir,
}

impl Headers {
    /// The directory. Its weights have their true lengths and no content.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The path that the model is opened by: the directory, or a GGUF file in it.
    pub fn model(&self) -> &Path {
        &self.model
    }

    pub(super) fn fetch(
        source: &Source<'_>,
        listing: &Listing,
        on_event: &mut dyn FnMut(Event<'_>),
    ) -> Result<Self, HubError> {
        let temp = std::env::temp_dir();
        let dir = tempfile::Builder::new().prefix("moeflux-headers-").tempdir();
        let dir = dir.map_err(HubError::io("create", &temp))?;
        on_event(Event::HeadersFolder { dir: dir.path() });
        // Errors of what reads the directory bear the repository's name.
        let root = dir.path().join(&source.repo.name);
        let total = listing.files.iter().filter(|file| has_header(&file.path)).count();
        let mut done = 0;
        let work = |task: usize, worker: &Worker<'_>| {
            let file = &listing.files[task];
            let content = content(source, listing, file, worker)?;
            write(file, &content, &root.join(&file.path))?;
            worker.bytes(u64::from(has_header(&file.path)), 0);
            Ok(())
        };
        pool::run(listing.files.len(), N_PARALLEL, work, &mut |message| match message {
            Message::Bytes { have, .. } => {
                done += have as usize;
                on_event(Event::Headers { done, total });
            }
            Message::Retry(retry) => on_event(Event::Retrying(&retry)),
            Message::Done => {}
        })?;
        Ok(Self { model: listing.model_in(root.clone()), root, _dir: dir })
    }
}

fn has_header(path: &str) -> bool {
    path.ends_with(".safetensors") || is_gguf(path)
}

/// What an inspection reads of a file: all, the header, or nothing but its length.
fn content<'a>(
    source: &Source<'_>,
    listing: &'a Listing,
    file: &RemoteFile,
    worker: &Worker<'_>,
) -> Result<Cow<'a, [u8]>, HubError> {
    match &listing.index {
        Some((name, content)) if *name == file.path => return Ok(content.into()),
        _ => {}
    }
    Ok(if select::is_description(&file.path) {
        worker.attempts(&file.path, |attempts| source.read_json(file, attempts))?.into()
    } else if is_gguf(&file.path) {
        gguf_header(source, file, worker)?.into()
    } else if has_header(&file.path) {
        header(source, file, worker)?.into()
    } else {
        Cow::default()
    })
}

/// Writes the start of a file, and makes the file as long as it is on the Hub.
fn write(file: &RemoteFile, content: &[u8], path: &Path) -> Result<(), HubError> {
    create_parent(path)?;
    let io = || HubError::io("write", path);
    let mut out = File::create_new(path).map_err(HubError::io("create", path))?;
    out.write_all(content).map_err(io())?;
    // Nothing is written there, so that only a size that no file can have fails.
    out.set_len(file.size).map_err(|_| HubError::Answer {
        url: file.url.clone(),
        problem: format!("a size of {} bytes", file.size),
    })
}

/// The prefix and the header. A prefix that promises more than the format allows is left to the
/// reader of the directory, which says what is wrong.
fn header(
    source: &Source<'_>,
    file: &RemoteFile,
    worker: &Worker<'_>,
) -> Result<Vec<u8>, HubError> {
    if file.size < PREFIX_BYTES {
        return Ok(Vec::new());
    }
    let mut bytes = read_part(source, file, 0, PREFIX_BYTES, worker)?;
    let prefix = bytes.first_chunk().expect("as many bytes as were asked for");
    let len = u64::from_le_bytes(*prefix);
    if len > 0 && len <= MAX_HEADER_BYTES.min(file.size - PREFIX_BYTES) {
        bytes.extend(read_part(source, file, PREFIX_BYTES, PREFIX_BYTES + len, worker)?);
    }
    Ok(bytes)
}

/// The header of a GGUF file, which says nowhere how long it is. One that is damaged is left to the
/// reader of the directory.
fn gguf_header(
    source: &Source<'_>,
    file: &RemoteFile,
    worker: &Worker<'_>,
) -> Result<Vec<u8>, HubError> {
    let mut head = Head {
        fetch: |start, end| read_part(source, file, start, end, worker),
        size: file.size,
        bytes: Vec::new(),
        at: 0,
        failure: None,
    };
    // What is wrong with a header, the reader of the directory says: it reads the same bytes.
    let _ = parse_gguf_header(&mut head, FileIdx(0), file.size);
    let Head { bytes, at, failure, .. } = head;
    match failure {
        Some(failure) => Err(failure),
        None => Ok(bytes[..at].to_vec()),
    }
}

/// The first bytes of a file, fetched as they are read, each time four times as many.
struct Head<F> {
    fetch: F,
    /// Bytes that there are.
    size: u64,
    bytes: Vec<u8>,
    /// How many were read.
    at: usize,
    failure: Option<HubError>,
}

impl<F: FnMut(u64, u64) -> Result<Vec<u8>, HubError>> Read for Head<F> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let have = self.bytes.len() as u64;
        if self.at as u64 == have && have < self.size {
            let end = (have * 4).max(FIRST_BYTES).min(self.size);
            match (self.fetch)(have, end) {
                Ok(bytes) => self.bytes.extend(bytes),
                Err(failure) => {
                    self.failure = Some(failure);
                    return Err(io::Error::other("the bytes cannot be fetched"));
                }
            }
        }
        let rest = &self.bytes[self.at..];
        let n = rest.len().min(out.len());
        out[..n].copy_from_slice(&rest[..n]);
        self.at += n;
        Ok(n)
    }
}

/// Bytes `start..end`: from the cache if the file is there, else from the Hub.
fn read_part(
    source: &Source<'_>,
    file: &RemoteFile,
    start: u64,
    end: u64,
    worker: &Worker<'_>,
) -> Result<Vec<u8>, HubError> {
    let blob = source.cache.blob(&file.blob);
    if fs::metadata(&blob).is_ok_and(|meta| meta.len() == file.size) {
        let io = || HubError::io("read", &blob);
        let mut content = File::open(&blob).map_err(io())?;
        content.seek(SeekFrom::Start(start)).map_err(io())?;
        let mut bytes = Vec::new();
        content.take(end - start).read_to_end(&mut bytes).map_err(io())?;
        return Ok(bytes);
    }
    let request = source.request(&file.url, &file.path);
    let read = || source.client.read_part(request, start, end);
    worker.attempts(&file.path, |attempts| source.client.retry.run(attempts, || 0, read))
}
