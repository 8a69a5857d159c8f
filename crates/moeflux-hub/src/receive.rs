//! The bytes of one file: resumed, checked, then renamed.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use moeflux_core::hex;
use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::cache::create_parent;
use super::error::HubError;
use super::http::{Answer, Range, Request, content_length, refuse_web_page, starts_at};
use super::listing::{Hash, RemoteFile, Source};
use super::pool::Worker;

/// Bytes between two reports of progress, and of one read.
const CHUNK_BYTES: usize = 1 << 18;

/// Brings one blob into the cache.
pub(super) fn fetch(
    source: &Source<'_>,
    file: &RemoteFile,
    worker: &Worker<'_>,
) -> Result<(), HubError> {
    let blob = source.cache.blob(&file.blob);
    create_parent(&blob)?;
    let partial = source.cache.partial(&file.blob);
    let length = AtomicU64::new(0);
    let is_whole = worker.attempts(&file.path, |attempts| {
        source.client.retry.run(
            attempts,
            || length.load(Ordering::Relaxed),
            || {
                receive(source, file, &partial, &mut |have, received| {
                    length.store(have, Ordering::Relaxed);
                    worker.bytes(have, received)
                })
            },
        )
    })?;
    if !is_whole {
        return Ok(()); // another task failed: what is here serves the next run
    }
    check(file, &partial).inspect_err(|_| {
        // Damaged bytes would be resumed for ever.
        let _ = fs::remove_file(&partial);
    })?;
    fs::rename(&partial, &blob).map_err(HubError::io("write", &blob))
}

/// One request, from where the partial file ends. `on_bytes` takes the bytes that are here and how
/// many of them are new, and answers whether to go on. Returns whether the file is whole.
fn receive(
    source: &Source<'_>,
    file: &RemoteFile,
    partial: &Path,
    on_bytes: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<bool, HubError> {
    let io = || HubError::io("write", partial);
    // A link in its place leads to what is not the cache's, and a pipe to another process.
    if fs::symlink_metadata(partial).is_ok_and(|found| !found.is_file()) {
        fs::remove_file(partial).map_err(io())?;
    }
    let mut out = File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(partial)
        .map_err(HubError::io("create", partial))?;
    let mut have = out.seek(SeekFrom::End(0)).map_err(io())?;
    if have > file.size {
        have = 0;
    }
    if have == file.size && have > 0 {
        on_bytes(have, 0);
        return Ok(true);
    }
    let range = (have > 0).then_some(Range::From { start: have, etag: &file.blob });
    let request = Request { range, ..source.request(&file.url, &file.path) };
    let Answer { response, etag, .. } = source.client.request(request)?;
    let status = response.status().as_u16();
    let is_rest = status == 206
        && starts_at(&response, have, Some(file.size))
        && (have == 0 || is_same_content(file, etag.as_deref()));
    if status == 416 || (status == 206 && !is_rest) {
        out.set_len(0).map_err(io())?; // the next attempt asks for the whole file
        return Err(HubError::odd_range(&file.url, status));
    }
    if !is_rest {
        have = 0; // the server sends the whole file
    }
    // Before anything is overwritten.
    refuse_other_length(file, &response, have)?;
    out.set_len(have).map_err(io())?;
    out.seek(SeekFrom::Start(have)).map_err(io())?;
    let mut body = response.into_body().into_reader();
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut n_new = 0;
    loop {
        if !on_bytes(have, n_new) {
            return Ok(false);
        }
        let n = body.read(&mut chunk).map_err(|source| HubError::network(&file.url, source))?;
        if n == 0 {
            break;
        }
        n_new = n as u64;
        if have + n_new > file.size {
            // Nothing of such an answer is worth resuming.
            out.set_len(0).map_err(io())?;
            return Err(file.damaged("size", "more".into(), file.size.to_string()));
        }
        out.write_all(&chunk[..n]).map_err(io())?;
        have += n_new;
    }
    if have < file.size {
        return Err(HubError::cut_off(&file.url));
    }
    out.sync_all().map_err(io())?;
    Ok(true)
}

/// Whether an answer is of the content that the partial file is of. Where a hash is known, that is
/// checked in the end; where none is, the blob has the name of the ETag.
fn is_same_content(file: &RemoteFile, etag: Option<&str>) -> bool {
    file.hash != Hash::Unknown || etag.is_none_or(|etag| etag == file.blob)
}

/// Refuses an answer whose announced length is not that of the file's rest.
fn refuse_other_length(
    file: &RemoteFile,
    response: &ureq::http::Response<ureq::Body>,
    have: u64,
) -> Result<(), HubError> {
    match content_length(response).map(|length| length.saturating_add(have)) {
        Some(size) if size != file.size => {
            refuse_web_page(response, &file.url)?;
            Err(file.damaged("size", size.to_string(), file.size.to_string()))
        }
        _ => Ok(()),
    }
}

fn check(file: &RemoteFile, partial: &Path) -> Result<(), HubError> {
    let io = || HubError::io("read", partial);
    let mut content = File::open(partial).map_err(io())?;
    let size = content.metadata().map_err(io())?.len();
    if size != file.size {
        return Err(file.damaged("size", size.to_string(), file.size.to_string()));
    }
    let (what, have, want) = match &file.hash {
        Hash::Unknown => return Ok(()),
        Hash::Sha256(want) => ("sha-256", digest(Sha256::new(), &mut content).map_err(io())?, want),
        Hash::Git(want) => {
            let start = Sha1::new_with_prefix(format!("blob {size}\0"));
            ("sha-1", digest(start, &mut content).map_err(io())?, want)
        }
    };
    if have == *want { Ok(()) } else { Err(file.damaged(what, have, want.clone())) }
}

fn digest(mut hasher: impl Digest, content: &mut File) -> std::io::Result<String> {
    let mut chunk = vec![0; 1 << 20];
    loop {
        let n = content.read(&mut chunk)?;
        if n == 0 {
            break;
        }
        hasher.update(&chunk[..n]);
    }
    Ok(hex(&hasher.finalize()))
}
