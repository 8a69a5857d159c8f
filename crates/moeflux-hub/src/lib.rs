//! Models from the Hugging Face Hub, in the cache that its own tools use.
//!
//! A name such as `org/name@revision` becomes a directory with the files of one commit, or the
//! path of a GGUF file in it: of `org/name:Q4_K_M` that file alone is fetched, with all parts where
//! it is split.
//! [`find`] asks the Hub what the name stands for. A model that is not in the cache can be
//! downloaded ([`Remote::download`]), or described by its headers alone ([`Remote::headers`]).
//! Downloads resume, are checked by size and hash, and appear under their names only when they are
//! whole. The settings come from the caller in a [`HubEnv`]; of the environment only the HTTP
//! library reads variables, those that name proxies.
//!
//! All calls block. Events arrive on the thread that called.

#![forbid(unsafe_code)]

mod cache;
mod certificates;
mod download;
mod env;
mod error;
mod event;
mod gguf;
mod headers;
mod http;
mod listing;
mod name;
mod pool;
mod receive;
mod removal;
mod retry;
mod select;
mod stored;

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

pub use certificates::Certificates;
pub use env::{DEFAULT_ENDPOINT, HubEnv, Login, Token};
pub use error::{HubError, Missing};
pub use event::{Chosen, Download, Event, Retry};
pub use headers::Headers;
pub use name::{Repo, Wanted, is_address, is_hub_name};
pub use removal::{Removal, removal};
pub use stored::{Stored, StoredModel, free_bytes, free_bytes_at, snapshot_in, stored};

use cache::{Cache, Fitness};
use download::Work;
use http::Client;
use listing::{Listing, Source};
use retry::{Attempts, N_ATTEMPTS};

/// Where a model is.
#[derive(Debug)]
pub enum Found {
    /// All of it is in the cache: its directory, or its GGUF file, of which the first part.
    Here(PathBuf),
    /// The Hub has it; all, some or none of its files are in the cache.
    Remote(Box<Remote>),
}

/// A model on the Hub: one commit and its files.
pub struct Remote {
    client: Client,
    repo: Repo,
    cache: Cache,
    listing: Listing,
    n_parallel: usize,
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remote").field("repo", &self.repo).finish_non_exhaustive()
    }
}

/// The path of a model that is complete in the cache; the network is not used. `None` also where
/// the Hub may have another file that fits better what is asked for.
///
/// # Errors
/// Where `model` is no name.
pub fn cached(model: &str, env: &HubEnv) -> Result<Option<PathBuf>, HubError> {
    let repo = Repo::parse(model, &env.endpoint)?;
    Ok(Cache::new(&env.cache_dir, &repo).copy_of(&repo, Fitness::Certain))
}

/// Asks the Hub for the files of `model`. A commit that is complete in the cache needs no question;
/// where the Hub cannot answer, or refuses, a complete copy from earlier is used.
///
/// # Errors
/// Where `model` is no name, or the Hub does not have it and the cache has no copy.
pub fn find(
    model: &str,
    env: &HubEnv,
    on_event: &mut dyn FnMut(Event<'_>),
) -> Result<Found, HubError> {
    let repo = Repo::parse(model, &env.endpoint)?;
    let cache = Cache::new(&env.cache_dir, &repo);
    let whole = cache.complete_snapshot(&repo.revision, &repo, Fitness::Certain);
    if let Some(path) = whole.filter(|path| path.is_file() || cache.has_companions(&repo.revision))
    {
        return Ok(Found::Here(path)); // a commit never changes
    }
    let copy = cache.copy_of(&repo, Fitness::Any);
    if env.is_offline {
        let cache_dir = env.cache_dir.clone();
        let offline = HubError::Offline { repo: repo.name, cache_dir };
        return copy.map(Found::Here).ok_or(offline);
    }
    // With a copy there is no reason to wait for a Hub that does not answer.
    let n_attempts = if copy.is_some() { 1 } else { N_ATTEMPTS };
    let client = Client::new(env, n_attempts)?;
    let mut attempts = Attempts {
        what: &repo.describe(),
        notify: &mut |retry| on_event(Event::Retrying(retry)),
        is_stopped: &AtomicBool::new(false),
    };
    let source = Source { client: &client, repo: &repo, cache: &cache };
    let listed = source.list(&mut attempts);
    match listed {
        Ok(listing) => {
            if let Some(set) = &listing.gguf {
                on_event(Event::Chosen(set));
            }
            let client = client.with_attempts(N_ATTEMPTS);
            let n_parallel = env.n_parallel;
            let remote = Remote { client, repo, cache, listing, n_parallel };
            Ok(Found::Remote(Box::new(remote)))
        }
        Err(reason) => match copy {
            Some(path) => {
                on_event(Event::Stale { reason: &reason });
                Ok(Found::Here(path))
            }
            None => Err(reason),
        },
    }
}

/// The path of a model, downloaded if need be: [`find`] and [`Remote::download`].
///
/// # Errors
/// As theirs.
pub fn resolve(
    model: &str,
    env: &HubEnv,
    on_event: &mut dyn FnMut(Event<'_>),
) -> Result<PathBuf, HubError> {
    match find(model, env, on_event)? {
        Found::Here(path) => Ok(path),
        Found::Remote(remote) => remote.download(on_event),
    }
}

impl Remote {
    /// What a download would take now.
    pub fn describe(&self) -> Download {
        Work::of(&self.listing, &self.cache).describe(&self.source(), &self.listing)
    }

    /// Fetches what is missing, unless it has no room, and returns the model's directory, or its
    /// GGUF file, of which the first part.
    ///
    /// # Errors
    /// Where the download has no room, the network fails, or a file is not what the Hub promised.
    /// What has arrived is kept for the next call.
    pub fn download(&self, on_event: &mut dyn FnMut(Event<'_>)) -> Result<PathBuf, HubError> {
        let Listing { commit, files, .. } = &self.listing;
        let path = self.listing.model_in(self.cache.snapshot(commit));
        if files.iter().all(|file| self.cache.has(commit, &file.path, file.size)) {
            // Needs no lock, which a cache that may only be read has not; nor the reference.
            let _ = self.cache.write_ref(&self.repo, commit);
            self.note_absent();
            return Ok(path);
        }
        let _lock = self.cache.lock(on_event)?;
        // Now that no other process downloads it.
        let work = Work::of(&self.listing, &self.cache);
        let download = work.describe(&self.source(), &self.listing);
        download.check_room()?;
        if download.missing_bytes > 0 {
            on_event(Event::Start { download: &download });
        }
        work.run(&self.source(), &self.listing, self.n_parallel, on_event)?;
        self.cache.write_ref(&self.repo, commit)?;
        self.note_absent();
        Ok(path)
    }

    /// Notes which small files the commit does not have, so that it is known to be complete later.
    fn note_absent(&self) {
        if self.listing.gguf.is_none() {
            let has = |name: &str| self.listing.files.iter().any(|file| file.path == name);
            // Without the note the Hub is asked again.
            let _ = self.cache.note_absent(&self.listing.commit, has);
        }
    }

    /// Reads configs, the index and the headers of weights, and nothing else.
    ///
    /// # Errors
    /// Where the network or the folder for temporary files fails.
    pub fn headers(&self, on_event: &mut dyn FnMut(Event<'_>)) -> Result<Headers, HubError> {
        Headers::fetch(&self.source(), &self.listing, on_event)
    }

    /// The path of the model in the cache, of which files may be missing; `None` where there are
    /// none.
    pub fn local_files(&self) -> Option<PathBuf> {
        let path = self.listing.model_in(self.cache.snapshot(&self.listing.commit));
        Some(path).filter(|path| path.exists())
    }

    fn source(&self) -> Source<'_> {
        Source { client: &self.client, repo: &self.repo, cache: &self.cache }
    }
}
