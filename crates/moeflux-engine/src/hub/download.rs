//! The bytes themselves: several files at a time, resumed, checked, then renamed.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};

use sha2::{Digest, Sha256};

use super::api::{Listing, RemoteFile, is_hex};
use super::cache::{Cache, create_parent};
use super::error::HubError;
use super::http::Client;
use super::{Progress, Repo, is_component};

/// Bytes between two reports of progress, and of one read.
const CHUNK_BYTES: usize = 1 << 18;

/// A file whose name in the cache and size are settled.
struct Job {
    idx: usize, // in the listing
    url: String,
    path: String,
    blob: String,
    size: u64,
    sha256: Option<String>,
}

/// What a worker tells the thread that reports.
enum Event {
    Bytes { job: usize, have: u64 },
    Done { result: Result<(), HubError> },
}

/// Brings all files of the listing into the snapshot.
pub(super) fn fetch_all(
    client: &Client,
    repo: &Repo,
    listing: &Listing,
    cache: &Cache,
    n_parallel: usize,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<(), HubError> {
    let commit = &listing.commit;
    let mut jobs = Vec::new();
    let mut held = 0;
    for (idx, file) in listing.files.iter().enumerate() {
        match file.size.filter(|_| cache.has(commit, &file.path, file.size)) {
            Some(size) => held += size,
            None => jobs.push(settle(client, repo, commit, idx, file)?),
        }
    }
    // Two names may share one content; the second only needs its link.
    let mut seen = std::collections::HashSet::new();
    let queue: VecDeque<usize> =
        (0..jobs.len()).filter(|&i| seen.insert(jobs[i].blob.clone())).collect();
    let distinct: u64 = queue.iter().map(|&i| jobs[i].size).sum();
    run(client, cache, &jobs, queue, n_parallel, &mut |job: &Job, have, arrived| {
        progress(Progress::Bytes {
            file: &job.path,
            file_done: have,
            file_total: job.size,
            done: held + arrived,
            total: held + distinct,
        });
    })?;
    jobs.sort_by_key(|job| job.idx);
    jobs.iter().try_for_each(|job| cache.link(commit, &job.path, &job.blob))
}

/// Asks the hub for what the listing does not tell.
fn settle(
    client: &Client,
    repo: &Repo,
    commit: &str,
    idx: usize,
    file: &RemoteFile,
) -> Result<Job, HubError> {
    let url = format!("{}/{}/resolve/{commit}/{}", client.endpoint, repo.name, file.path);
    let mut job = Job {
        idx,
        path: file.path.clone(),
        blob: file.blob.clone().unwrap_or_default(),
        size: file.size.unwrap_or_default(),
        sha256: file.sha256.clone(),
        url,
    };
    if file.blob.is_some() && file.size.is_some() {
        return Ok(job);
    }
    let what = format!("{} of {}", file.path, repo.describe());
    let answer = client.with_retries(|| 0, || client.request("HEAD", &job.url, &what, None))?;
    let etag = answer.etag.filter(|etag| is_component(etag));
    let length = answer.response.headers().get("content-length");
    let length = length.and_then(|n| n.to_str().ok()?.parse().ok());
    let size = file.size.or(answer.linked_size).or(length);
    let (Some(etag), Some(size)) = (etag, size) else {
        let problem = "neither an ETag nor a size".to_owned();
        return Err(HubError::Answer { url: job.url, problem });
    };
    job.sha256 = job.sha256.or(Some(etag.clone()).filter(|etag| is_hex(etag, 64)));
    job.blob = file.blob.clone().unwrap_or(etag);
    job.size = size;
    Ok(job)
}

/// Works off the queue. `report(job, bytes of it, bytes of all)` runs on this thread. The first
/// failure stops the other workers and is returned.
fn run(
    client: &Client,
    cache: &Cache,
    jobs: &[Job],
    queue: VecDeque<usize>,
    n_parallel: usize,
    report: &mut dyn FnMut(&Job, u64, u64),
) -> Result<(), HubError> {
    let n_workers = n_parallel.clamp(1, 16).min(queue.len());
    let queue = Mutex::new(queue);
    let is_stopped = AtomicBool::new(false);
    let mut have = vec![0; jobs.len()];
    let mut result = Ok(());
    std::thread::scope(|scope| {
        let (events, inbox) = mpsc::sync_channel(64);
        for _ in 0..n_workers {
            let events = events.clone();
            let (queue, is_stopped) = (&queue, &is_stopped);
            scope.spawn(move || {
                while !is_stopped.load(Ordering::Relaxed) {
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                    let Some(idx) = next else { break };
                    let mut tell = |have| {
                        // The receiver outlives the workers.
                        let _ = events.send(Event::Bytes { job: idx, have });
                        !is_stopped.load(Ordering::Relaxed)
                    };
                    let result = fetch(client, cache, &jobs[idx], &mut tell);
                    let _ = events.send(Event::Done { result });
                }
            });
        }
        drop(events);
        for event in inbox {
            match event {
                Event::Bytes { job, have: bytes } => {
                    have[job] = bytes;
                    report(&jobs[job], bytes, have.iter().sum());
                }
                Event::Done { result: Err(error) } if result.is_ok() => {
                    is_stopped.store(true, Ordering::Relaxed);
                    result = Err(error);
                }
                Event::Done { .. } => {}
            }
        }
    });
    result
}

/// Brings one blob into the cache, unless it is there. `tell` takes the bytes that are here and
/// answers whether to go on.
fn fetch(
    client: &Client,
    cache: &Cache,
    job: &Job,
    tell: &mut dyn FnMut(u64) -> bool,
) -> Result<(), HubError> {
    let blob = cache.blob(&job.blob);
    if fs::metadata(&blob).is_ok_and(|meta| meta.len() == job.size) {
        tell(job.size);
        return Ok(());
    }
    create_parent(&blob)?;
    let partial = cache.blob(&format!("{}.incomplete", job.blob));
    let length = AtomicU64::new(0);
    let done = client.with_retries(
        || length.load(Ordering::Relaxed),
        || {
            receive(client, job, &partial, &mut |have| {
                length.store(have, Ordering::Relaxed);
                tell(have)
            })
        },
    )?;
    if !done {
        return Ok(()); // another worker failed: what is here serves the next time
    }
    check(job, &partial).inspect_err(|_| {
        // Damaged bytes would be resumed for ever.
        let _ = fs::remove_file(&partial);
    })?;
    fs::rename(&partial, &blob).map_err(HubError::io("write", &blob))
}

/// One request, from where the partial file ends. Returns whether the file is complete.
fn receive(
    client: &Client,
    job: &Job,
    partial: &Path,
    tell: &mut dyn FnMut(u64) -> bool,
) -> Result<bool, HubError> {
    let io = || HubError::io("write", partial);
    let mut file = File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(partial)
        .map_err(HubError::io("create", partial))?;
    let mut have = file.seek(SeekFrom::End(0)).map_err(io())?;
    if have > job.size {
        have = 0;
    }
    if have == job.size && have > 0 {
        tell(have);
        return Ok(true);
    }
    let range = (have > 0).then_some((have, job.blob.as_str()));
    let answer = client.request("GET", &job.url, &job.path, range)?;
    let status = answer.response.status().as_u16();
    let is_rest = status == 206 && starts_at(&answer.response, have);
    if !is_rest {
        have = 0; // the server sends the whole file
    }
    file.set_len(have).map_err(io())?;
    file.seek(SeekFrom::Start(have)).map_err(io())?;
    if status == 416 || (status == 206 && !is_rest) {
        return Err(HubError::Status { url: job.url.clone(), status: 408 });
    }
    let mut body = answer.response.into_body().into_reader();
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        if !tell(have) {
            return Ok(false);
        }
        let n = body.read(&mut chunk).map_err(|source| HubError::Network {
            url: job.url.clone(),
            source: Box::new(source),
        })?;
        if n == 0 {
            break;
        }
        have += n as u64;
        if have > job.size {
            break; // the check names both sizes
        }
        file.write_all(&chunk[..n]).map_err(io())?;
    }
    if have < job.size {
        let source = "the connection ended early".into();
        return Err(HubError::Network { url: job.url.clone(), source });
    }
    file.sync_all().map_err(io())?;
    if have > job.size {
        return Err(damaged(job, "size", format!("more than {}", job.size), job.size.to_string()));
    }
    Ok(true)
}

/// Whether a partial answer begins at byte `from`.
fn starts_at(response: &ureq::http::Response<ureq::Body>, from: u64) -> bool {
    let range = response.headers().get("content-range").and_then(|v| v.to_str().ok());
    let range = range.and_then(|text| text.trim().strip_prefix("bytes ")?.split_once('-'));
    range.is_some_and(|(start, _)| start.trim().parse() == Ok(from))
}

fn check(job: &Job, partial: &Path) -> Result<(), HubError> {
    let io = || HubError::io("read", partial);
    let mut file = File::open(partial).map_err(io())?;
    let size = file.metadata().map_err(io())?.len();
    if size != job.size {
        return Err(damaged(job, "size", size.to_string(), job.size.to_string()));
    }
    let Some(want) = &job.sha256 else { return Ok(()) };
    let mut hasher = Sha256::new();
    let mut chunk = vec![0; 1 << 20];
    loop {
        let n = file.read(&mut chunk).map_err(io())?;
        if n == 0 {
            break;
        }
        hasher.update(&chunk[..n]);
    }
    let have: String = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    if have != *want {
        return Err(damaged(job, "sha-256", have, want.clone()));
    }
    Ok(())
}

fn damaged(job: &Job, what: &'static str, have: String, want: String) -> HubError {
    HubError::Damaged { file: job.path.clone(), what, have, want }
}
