//! All files of a listing: what is here, what is missing, and several fetched at a time.

use std::collections::HashSet;
use std::fs;

use super::cache::Cache;
use super::error::HubError;
use super::event::{Download, Event};
use super::listing::{Listing, RemoteFile, Source};
use super::pool::{self, Message};
use super::receive::fetch;
use super::select;

/// What of a listing is here and what is not.
pub(super) struct Work<'a> {
    /// Files whose content has to be fetched, each content once.
    missing: Vec<&'a RemoteFile>,
    /// Bytes of each of `missing` that an earlier run left.
    have: Vec<u64>,
    /// Bytes of all distinct contents.
    total: u64,
}

impl<'a> Work<'a> {
    pub(super) fn of(listing: &'a Listing, cache: &Cache) -> Self {
        let (mut missing, mut have, mut total) = (Vec::new(), Vec::new(), 0u64);
        let mut seen = HashSet::new();
        for file in &listing.files {
            if !seen.insert(&file.blob) {
                continue; // two names of one content; the second only needs its link
            }
            total = total.saturating_add(file.size);
            let is_here = cache.has(&listing.commit, &file.path, file.size)
                || is_of_size(&cache.blob(&file.blob), file.size);
            if !is_here {
                let partial = fs::metadata(cache.partial(&file.blob)).map_or(0, |meta| meta.len());
                have.push(if partial > file.size { 0 } else { partial });
                missing.push(file);
            }
        }
        Self { missing, have, total }
    }

    pub(super) fn missing_bytes(&self) -> u64 {
        let sizes = self.missing.iter().zip(&self.have).map(|(file, have)| file.size - have);
        sizes.fold(0, u64::saturating_add)
    }

    pub(super) fn describe(&self, source: &Source<'_>, listing: &Listing) -> Download {
        let dir = source.cache.dir().to_path_buf();
        Download {
            repo: source.repo.name.clone(),
            label: listing.gguf.as_ref().map(|chosen| chosen.label.clone()),
            commit: listing.commit.clone(),
            n_files: listing.files.len(),
            bytes: self.total,
            missing_bytes: self.missing_bytes(),
            free_bytes: source.cache.free_bytes(),
            // That of a GGUF file is in the file.
            has_tokenizer: listing.gguf.is_some()
                || select::has_tokenizer(listing.files.iter().map(|file| &file.path[..])),
            dir,
        }
    }

    /// Fetches what is missing and gives all files their names in the snapshot.
    pub(super) fn run(
        &self,
        source: &Source<'_>,
        listing: &Listing,
        n_parallel: usize,
        on_event: &mut dyn FnMut(Event<'_>),
    ) -> Result<(), HubError> {
        let mut have = self.have.clone();
        let missing = self.missing.iter().map(|file| file.size).fold(0, u64::saturating_add);
        let held = self.total.saturating_sub(missing);
        let work =
            |task: usize, worker: &pool::Worker<'_>| fetch(source, self.missing[task], worker);
        pool::run(self.missing.len(), n_parallel, work, &mut |message| match message {
            Message::Bytes { task, have: bytes, received } => {
                have[task] = bytes;
                let done = have.iter().copied().fold(held, u64::saturating_add);
                on_event(Event::Bytes { done, total: self.total, received });
            }
            Message::Retry(retry) => on_event(Event::Retrying(&retry)),
            Message::Done => {}
        })?;
        let link = |file: &RemoteFile| {
            if source.cache.has(&listing.commit, &file.path, file.size) {
                Ok(())
            } else {
                source.cache.link(&listing.commit, &file.path, &file.blob)
            }
        };
        listing.files.iter().try_for_each(link)
    }
}

fn is_of_size(path: &std::path::Path, size: u64) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.len() == size)
}
