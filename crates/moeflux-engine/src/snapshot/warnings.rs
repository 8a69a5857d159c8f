//! What the prefix cache met that the user should know.

use std::collections::BTreeSet;
use std::sync::Mutex;

use super::lock::locked;

/// What is said once, until it is settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Trouble {
    /// A file could not be written.
    NotWritten,
    /// A prompt is larger than the whole cache may be.
    TooLarge,
}

/// Warnings that wait for the user.
#[derive(Debug, Default)]
pub(super) struct Warnings {
    texts: Mutex<Vec<String>>,
    said: Mutex<BTreeSet<Trouble>>,
}

impl Warnings {
    pub(super) fn add(&self, text: String) {
        locked(&self.texts).push(text);
    }

    /// Adds a warning of a kind that was not said since it was last settled.
    pub(super) fn add_once(&self, kind: Trouble, text: String) {
        if locked(&self.said).insert(kind) {
            self.add(text);
        }
    }

    /// The cause is gone: what comes is new.
    pub(super) fn settle(&self, kind: Trouble) {
        locked(&self.said).remove(&kind);
    }

    /// Those since the last call.
    pub(super) fn take(&self) -> Vec<String> {
        std::mem::take(&mut locked(&self.texts))
    }
}
