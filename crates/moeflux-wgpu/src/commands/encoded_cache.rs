//! Command buffers that are encoded in advance: consecutive decode steps record identical commands,
//! as what differs between them is in the arena.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

use wgpu::CommandBuffer;

use crate::commands::command::Command;

/// Batches that are remembered, and those of them whose commands are ready: those of a
/// token, twice as histories of convolutions take turns, for each of some numbers of rows.
const MOST: usize = 128;

/// Batches that were submitted and wait for a thread to look at them.
const MOST_WAITING: usize = 32;

/// Commands, and what was encoded of them.
pub(super) type Ready = (Vec<Command>, CommandBuffer);

/// What it gives back takes long to drop: not under a lock that others wait for.
#[derive(Debug, Default)]
pub(super) struct EncodedCache {
    /// Whether there are threads that look at batches.
    pub(super) is_on: bool,
    seen: VecDeque<u64>,
    ready: VecDeque<Ready>,
    waiting: VecDeque<Vec<Command>>,
    /// Grows when everything is forgotten.
    epoch: u64,
}

impl EncodedCache {
    /// What was encoded of these commands, which are then not ready any more.
    pub(super) fn take(&mut self, commands: &[Command]) -> Option<CommandBuffer> {
        let at = self.ready.iter().position(|(known, _)| known == commands)?;
        self.ready.remove(at).map(|(_, encoded)| encoded)
    }

    /// Queues the commands of a submitted batch for encoding; returns those that will not be encoded,
    /// so that the caller drops them.
    pub(super) fn note(&mut self, commands: Vec<Command>) -> Option<Vec<Command>> {
        if !self.is_on {
            return Some(commands);
        }
        self.waiting.push_back(commands);
        if self.waiting.len() > MOST_WAITING { self.waiting.pop_front() } else { None }
    }

    /// Commands that may be worth encoding, and when this was said.
    pub(super) fn next(&mut self) -> Option<(Vec<Command>, u64)> {
        Some((self.waiting.pop_front()?, self.epoch))
    }

    /// Whether such commands came before; from now on they did.
    pub(super) fn is_known(&mut self, fingerprint: u64) -> bool {
        if self.seen.contains(&fingerprint) {
            return true;
        }
        if self.seen.len() >= MOST {
            self.seen.pop_front();
        }
        self.seen.push_back(fingerprint);
        false
    }

    /// Keeps what was encoded, unless everything was forgotten since; gives back what
    /// is not kept.
    pub(super) fn keep(&mut self, ready: Ready, epoch: u64) -> Option<Ready> {
        if epoch != self.epoch {
            return Some(ready);
        }
        self.ready.push_back(ready);
        if self.ready.len() > MOST { self.ready.pop_front() } else { None }
    }

    /// Lets go of all buffers that commands name.
    pub(super) fn forget(&mut self) {
        self.epoch += 1;
        self.ready.clear();
        self.waiting.clear();
    }

    #[cfg(test)]
    pub(super) fn n_ready(&self) -> usize {
        self.ready.len()
    }
}

/// What batches are recognised by.
pub(super) fn fingerprint(commands: &[Command]) -> u64 {
    let mut hasher = DefaultHasher::new();
    commands.hash(&mut hasher);
    hasher.finish()
}
