//! The prefix cache: evaluated prompts that sessions have left, in memory and on the drive.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use moeflux_backend::Sequence;
use moeflux_core::{TokenId, explain_thread_error};

use super::drive::{Drive, Stored};
use super::file::{Contents, Loaded, read, saved};
use super::host::{Host, ModelCard};
use super::image::Image;
use super::names::ModelKey;
use super::shelf::{Arrival, Life, Shelf, Shelved};
use super::warnings::Warnings;
use crate::error::{EngineError, SnapshotError};
use crate::options::{MIN_PROMPT_TOKENS, PromptCacheOptions};

/// Tokens that are evaluated again rather than copied with all before them: a step takes longer than a
/// copy in memory.
const MIN_IMAGE_TOKENS: usize = 16;

/// The prefix cache of an engine. What is put into memory goes on to the drive by a thread of its own.
#[derive(Debug)]
pub(crate) struct PrefixCache {
    key: ModelKey,
    shelf: Arc<Shelf>,
    drive: Option<Arc<Drive>>,
    warnings: Arc<Warnings>,
    min_tokens: usize,
    writer: Option<JoinHandle<()>>,
}

/// When a prompt is written: a conversation that grows is written whole each time, so that less has to
/// be new where it is still in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Occasion {
    /// Its session, or its image in memory, stays.
    Pause,
    /// It leaves memory.
    Leaving,
}

impl Occasion {
    /// The share of a prompt that has to be new.
    fn least_share(self) -> usize {
        match self {
            Occasion::Pause => 8,
            Occasion::Leaving => 64,
        }
    }
}

/// What begins like a prompt.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// Tokens of the prompt that it saves evaluating.
    pub(crate) n_reusable: usize,
    pub(crate) n_bytes: u64,
    place: Place,
}

#[derive(Clone, Debug)]
enum Place {
    Memory(Shelved),
    Drive(Stored),
}

/// A session that is to be kept.
pub(crate) struct Leaving<'a> {
    pub(crate) sequence: Sequence,
    pub(crate) contents: Contents,
    /// Where the next turn of its conversation parts from it.
    pub(crate) turn_end: usize,
    /// The name that it had when it was kept last.
    pub(crate) previous: Option<&'a str>,
}

impl PrefixCache {
    /// `memory` is the size of the part in memory in bytes.
    pub(crate) fn open(
        options: Option<&PromptCacheOptions>,
        memory: u64,
        model: ModelCard,
    ) -> Result<Option<PrefixCache>, SnapshotError> {
        if options.is_none() && memory == 0 {
            return Ok(None);
        }
        let warnings = Arc::new(Warnings::default());
        let open = |options| Drive::open(options, model.clone(), Arc::clone(&warnings));
        let drive = options.map(open).transpose()?.map(Arc::new);
        let key = ModelKey::of(&model);
        let mut cache = PrefixCache {
            key,
            shelf: Arc::new(Shelf::new(memory, model.clone())),
            drive,
            warnings,
            min_tokens: options.map_or(MIN_PROMPT_TOKENS, |options| options.min_tokens).max(1),
            writer: None,
        };
        if memory > 0
            && let Some(drive) = &cache.drive
        {
            match start_writer(Arc::clone(&cache.shelf), Arc::clone(drive)) {
                Ok(writer) => cache.writer = Some(writer),
                Err(err) => {
                    // Without the writer sessions are written by the thread that has them.
                    cache.shelf = Arc::new(Shelf::new(0, model));
                    cache.warnings.add(format!("no prompt is kept in memory: {err}"));
                }
            }
        }
        Ok(Some(cache))
    }

    /// What shares a prefix with the first `limit` of `tokens`: the longest reusable prefix first, and
    /// memory before the drive.
    pub(crate) fn candidates(&self, tokens: &[TokenId], limit: usize) -> Vec<Found> {
        let shelved = self.shelf.candidates(tokens, limit).into_iter().map(|shelved| Found {
            n_reusable: shelved.n_reusable,
            n_bytes: shelved.image.n_bytes(),
            place: Place::Memory(shelved),
        });
        let stored = self.drive.iter().flat_map(|drive| drive.candidates(tokens, limit));
        let stored = stored.map(|stored| Found {
            n_reusable: stored.n_reusable,
            n_bytes: stored.n_bytes,
            place: Place::Drive(stored),
        });
        let mut found: Vec<Found> = shelved.chain(stored).collect();
        let on_drive = |found: &Found| matches!(found.place, Place::Drive(_));
        found.sort_by_key(|found| {
            (std::cmp::Reverse(found.n_reusable), on_drive(found), found.n_bytes)
        });
        found
    }

    /// Reads what was found into a new sequence; `None` where it is gone or damaged.
    ///
    /// # Errors
    /// Where the device fails.
    pub(crate) fn read(
        &self,
        host: &dyn Host,
        found: &Found,
    ) -> Result<Option<Loaded>, EngineError> {
        match (&found.place, &self.drive) {
            (Place::Memory(shelved), _) => {
                let loaded = shelved.image.load(host, found.n_reusable)?;
                self.shelf.touch(&shelved.name);
                Ok(Some(loaded))
            }
            (Place::Drive(stored), Some(drive)) => {
                match read(host, &stored.path, Some(found.n_reusable)) {
                    Ok(loaded) => {
                        drive.touch(stored);
                        Ok(Some(loaded))
                    }
                    Err(EngineError::Snapshot(err)) => {
                        drive.discard(&stored.path, &err);
                        Ok(None)
                    }
                    Err(err) => Err(err),
                }
            }
            (Place::Drive(_), None) => Ok(None),
        }
    }

    /// How many of the first `limit` tokens need no evaluation.
    pub(crate) fn n_known(&self, tokens: &[TokenId], limit: usize) -> usize {
        let shelved = self.shelf.candidates(tokens, limit).into_iter();
        let longest = shelved.map(|shelved| shelved.n_reusable).max().unwrap_or(0);
        longest.max(n_written(self.drive.as_deref(), tokens, limit))
    }

    /// The fewest new tokens for which a prompt is kept.
    pub(crate) fn min_tokens(&self) -> usize {
        if self.shelf.takes(1) { self.min_tokens.min(MIN_IMAGE_TOKENS) } else { self.min_tokens }
    }

    /// Whether a prompt of which the first `turn_end` tokens will be asked for is to be written.
    pub(crate) fn is_worth_writing(
        &self,
        tokens: &[TokenId],
        turn_end: usize,
        occasion: Occasion,
    ) -> bool {
        let Some(drive) = &self.drive else { return false };
        is_worth_writing(drive, self.min_tokens, tokens, turn_end, occasion)
    }

    /// Whether the drive's size allows these contents.
    pub(crate) fn may_write(&self, contents: &Contents) -> bool {
        self.drive.as_ref().is_some_and(|drive| drive.takes(contents))
    }

    /// Whether memory may have an image of these contents, others making room for it.
    pub(crate) fn takes(&self, host: &dyn Host, contents: &Contents) -> bool {
        self.shelf.takes(contents.n_bytes(host))
    }

    /// Whether memory has room for an image of these contents now.
    pub(crate) fn has_room_for(&self, host: &dyn Host, contents: &Contents) -> bool {
        self.shelf.has_room_for(contents.n_bytes(host))
    }

    /// Copies a session that another prompt takes to memory. `needed` is what that prompt is read
    /// from. Returns the name of the copy.
    ///
    /// # Errors
    /// Where the device fails.
    pub(crate) fn keep(
        &self,
        host: &dyn Host,
        leaving: Leaving<'_>,
        needed: Option<&Found>,
    ) -> Result<String, EngineError> {
        let needed = needed.and_then(|found| match &found.place {
            Place::Memory(shelved) => Some(shelved.name.as_str()),
            Place::Drive(_) => None,
        });
        self.insert(host, leaving, Life::Kept, needed)
    }

    /// Has the writer write a session that stays. Returns the name of the file.
    ///
    /// # Errors
    /// Where the device fails.
    pub(crate) fn write_behind(
        &self,
        host: &dyn Host,
        leaving: Leaving<'_>,
    ) -> Result<String, EngineError> {
        self.insert(host, leaving, Life::Written, None)
    }

    fn insert(
        &self,
        host: &dyn Host,
        leaving: Leaving<'_>,
        life: Life,
        needed: Option<&str>,
    ) -> Result<String, EngineError> {
        let Leaving { sequence, contents, turn_end, previous } = leaving;
        let name = self.key.name_of(&contents);
        let image = Image::take(host, sequence, contents, turn_end)?;
        let previous = previous.map(str::to_owned);
        let arrival = Arrival { name: name.clone(), image, previous, life };
        self.shelf.insert(arrival, needed, &|image| self.is_worth(image, Occasion::Leaving));
        Ok(name)
    }

    fn is_worth(&self, image: &Image, occasion: Occasion) -> bool {
        let contents = image.contents();
        self.is_worth_writing(&contents.tokens, image.turn_end(), occasion)
            && self.may_write(contents)
    }

    /// Writes a session to the drive. Returns its name; `None` where there is no drive, or the size
    /// limit does not allow it.
    ///
    /// # Errors
    /// Where the file cannot be written or the device fails.
    pub(crate) fn put(
        &self,
        host: &dyn Host,
        leaving: &Leaving<'_>,
    ) -> Result<Option<String>, EngineError> {
        let Some(drive) = &self.drive else { return Ok(None) };
        let Leaving { sequence, contents, previous, .. } = leaving;
        let block = &mut |cache, positions| Ok(saved(host, *sequence, cache, positions)?.into());
        drive.put(contents, *previous, block)
    }

    /// Has what is only in memory written where enough of it is new.
    pub(crate) fn write_images(&self, occasion: Occasion) {
        self.shelf.queue(&|image| self.is_worth(image, occasion));
    }

    /// Waits until all that is to be written is on the drive.
    pub(crate) fn wait_for_writer(&self) {
        if self.writer.is_some() {
            self.shelf.wait_for_writer();
        }
    }

    /// Says once that prompts are not kept, until one is.
    pub(crate) fn note_failure(&self, err: &EngineError) {
        match &self.drive {
            Some(drive) => drive.note_failure(err),
            None => self.warnings.add(format!("the prompt is not kept: {err}")),
        }
    }

    /// Takes the warnings since the last call.
    pub(crate) fn take_warnings(&self) -> Vec<String> {
        self.warnings.take()
    }
}

impl Drop for PrefixCache {
    fn drop(&mut self) {
        self.shelf.close();
        if let Some(writer) = self.writer.take() {
            // It has said what went wrong.
            let _ = writer.join();
        }
    }
}

impl Found {
    /// The name of a whole conversation, which a longer one of the same conversation replaces. Of a
    /// beginning that others share there is none.
    pub(crate) fn conversation(&self) -> Option<String> {
        match &self.place {
            Place::Memory(shelved) => {
                (shelved.n_reusable >= shelved.image.turn_end()).then(|| shelved.name.clone())
            }
            Place::Drive(stored) => {
                let name = stored.path.file_name()?.to_str()?;
                stored.goes_on.then(|| name.to_owned())
            }
        }
    }
}

fn n_written(drive: Option<&Drive>, tokens: &[TokenId], limit: usize) -> usize {
    let stored = drive.map(|drive| drive.candidates(tokens, limit)).unwrap_or_default();
    stored.first().map_or(0, |stored| stored.n_reusable)
}

fn is_worth_writing(
    drive: &Drive,
    min_tokens: usize,
    tokens: &[TokenId],
    turn_end: usize,
    occasion: Occasion,
) -> bool {
    if drive.rests() {
        return false;
    }
    let n_written = n_written(Some(drive), tokens, turn_end);
    turn_end.saturating_sub(n_written) >= min_tokens.max(n_written / occasion.least_share())
}

/// Closes the shelf when its writer ends, also by a panic.
struct Ended<'a>(&'a Shelf);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

fn start_writer(shelf: Arc<Shelf>, drive: Arc<Drive>) -> std::io::Result<JoinHandle<()>> {
    let write = move || {
        // A shutdown does not wait for a thread that has died.
        let _ended = Ended(&shelf);
        while let Some(task) = shelf.next_task() {
            let image = task.image;
            let previous = task.previous.as_deref();
            let done = drive.put(image.contents(), previous, &mut image.blocks());
            if let Err(err) = &done {
                drive.note_failure(err);
            }
            shelf.settle(&task.name, matches!(done, Ok(Some(_))));
        }
    };
    let started = thread::Builder::new().name(String::from("prompts")).spawn(write);
    started.map_err(explain_thread_error)
}
