//! What is learned of a template by rendering short conversations with it, once for each source.
//!
//! What a template may take for that is bounded for all of these conversations together: one that
//! writes megabytes of a short question, or computes for long, is no template whose habits matter.
//! After the bound it counts as one that refuses conversations.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::history::HistoryShape;
use super::length::Written;
use super::picture_parts::PictureRoles;

/// Bytes that may be written: 40 kB for each of some hundred conversations.
const MAX_BYTES: u64 = 4 << 20;

/// Processor time that may be taken: 10 ms for each of them.
const MAX_TIME: Duration = Duration::from_secs(1);

/// The habits of a template.
#[derive(Debug, Default)]
pub(super) struct Learned {
    pub(super) shape: HistoryShape,
    pub(super) written: Written,
    pub(super) pictures: PictureRoles,
    pub(super) spent: Arc<Spent>,
}

/// What is known of the templates of a model, by source.
#[derive(Debug, Default)]
pub(super) struct KnownTemplates(Mutex<Vec<(String, Arc<Learned>)>>);

impl KnownTemplates {
    pub(super) fn find(&self, source: &str) -> Option<Arc<Learned>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known.iter().find(|(own, _)| own == source);
        found.map(|(_, learned)| Arc::clone(learned))
    }

    pub(super) fn keep(&self, source: &str, learned: &Arc<Learned>) {
        if self.find(source).is_none() {
            let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            known.push((source.to_owned(), Arc::clone(learned)));
        }
    }
}

/// What was spent to learn them.
#[derive(Debug, Default)]
pub(super) struct Spent {
    n_bytes: AtomicU64,
    micros: AtomicU64,
}

impl Spent {
    /// Counts one rendering.
    pub(super) fn add(&self, n_bytes: usize, time: Duration) {
        self.n_bytes.fetch_add(n_bytes as u64, Ordering::Relaxed);
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// Whether nothing more is to be learned.
    pub(super) fn is_all(&self) -> bool {
        let micros = self.micros.load(Ordering::Relaxed);
        self.n_bytes.load(Ordering::Relaxed) > MAX_BYTES || Duration::from_micros(micros) > MAX_TIME
    }
}
