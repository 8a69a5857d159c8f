//! A session in the processor's memory: what a file has, with recurrent states that sessions share.

use std::borrow::Cow;
use std::ops::Range;

use moeflux_backend::{Cache, Sequence};
use moeflux_core::TokenId;

use super::file::{Contents, Loaded, load_states, saved, stored_blocks};
use super::host::{Facts, Host};
use crate::error::EngineError;

/// A copy of a session's first positions.
#[derive(Debug)]
pub(crate) struct Image {
    contents: Contents,
    /// Where the next turn of its conversation parts from it, at most its end.
    turn_end: usize,
    /// Keys and values, in the order of a file.
    blocks: Vec<Vec<u8>>,
    n_bytes: u64,
}

impl Image {
    /// Copies the first positions of a sequence.
    ///
    /// # Errors
    /// Where the device fails.
    pub(crate) fn take(
        host: &dyn Host,
        sequence: Sequence,
        contents: Contents,
        turn_end: usize,
    ) -> Result<Image, EngineError> {
        let stored = stored_blocks(&contents.header(host), &host.shape().caches);
        let save = |(cache, _, positions)| saved(host, sequence, cache, positions);
        let blocks = stored.into_iter().map(save).collect::<Result<Vec<_>, _>>()?;
        let n_bytes = contents.n_bytes(host);
        Ok(Image { contents, turn_end, blocks, n_bytes })
    }

    /// Puts it into a new sequence, up to `end`, which is one of its states where it has any.
    ///
    /// # Errors
    /// Where the device fails, or has no memory for it.
    pub(crate) fn load(&self, host: &dyn Host, end: usize) -> Result<Loaded, EngineError> {
        let caches = &host.shape().caches;
        let core = &mut *host.core();
        let backend = core.backend();
        let sequence = backend.new_sequence(caches);
        let mut fill = || {
            let stored = stored_blocks(&self.contents.header(host), caches);
            for ((cache, _, positions), bytes) in stored.into_iter().zip(&self.blocks) {
                backend.load_cache(sequence, cache, positions, bytes)?;
            }
            if end < self.contents.n_positions() {
                backend.truncate_sequence(sequence, end);
            }
            let at_end = self.contents.states.iter().find(|(position, _)| *position == end);
            at_end.map_or(Ok(()), |(_, states)| load_states(backend, sequence, caches, states))
        };
        if let Err(err) = fill() {
            backend.drop_sequence(sequence);
            return Err(err.into());
        }
        let mut contents = self.contents.clone();
        contents.tokens.truncate(end - contents.n_unknown);
        contents.states.retain(|(position, _)| *position <= end);
        Ok(Loaded { sequence, contents })
    }

    /// Gives its keys and values, in the order of a file.
    pub(super) fn blocks<'a>(
        &'a self,
    ) -> impl FnMut(Cache, Range<usize>) -> Result<Cow<'a, [u8]>, EngineError> {
        let mut blocks = self.blocks.iter();
        move |_, _| Ok(Cow::from(&**blocks.next().expect("a block for each of the header")))
    }

    /// Takes over the recurrent states of an earlier image of the same conversation that this one
    /// lacks, as far as both have the same tokens.
    pub(super) fn inherit(&mut self, facts: &dyn Facts, earlier: &Image) {
        if facts.shape().window().is_some() {
            // Layers with a window hold only what rows at the listed positions see.
            return;
        }
        let n_common = n_common(&self.contents.tokens, &earlier.contents.tokens);
        for (position, states) in &earlier.contents.states {
            let at = self.contents.states.partition_point(|(own, _)| own < position);
            let is_new = self.contents.states.get(at).is_none_or(|(own, _)| own != position);
            if *position <= n_common && is_new {
                self.contents.states.insert(at, (*position, states.clone()));
            }
        }
        self.contents.thin();
        self.n_bytes = self.contents.n_bytes(facts);
    }

    /// What it has but for keys and values.
    pub(crate) fn contents(&self) -> &Contents {
        &self.contents
    }

    pub(crate) fn turn_end(&self) -> usize {
        self.turn_end
    }

    /// Bytes of its file. In memory its states may be those of a session.
    pub(crate) fn n_bytes(&self) -> u64 {
        self.n_bytes
    }
}

/// How many tokens two texts begin with in common.
pub(super) fn n_common(one: &[TokenId], other: &[TokenId]) -> usize {
    one.iter().zip(other).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
impl Image {
    /// One without a device: states at these positions, and a size in all.
    pub(super) fn of(tokens: &[u32], states: &[usize], n_bytes: u64) -> Image {
        let tokens: Vec<TokenId> = tokens.iter().copied().map(TokenId).collect();
        let states = states
            .iter()
            .map(|at| (*at, crate::positions::checkpoints::States::default()))
            .collect();
        let turn_end = tokens.len();
        let contents = Contents { n_unknown: 0, tokens, pictures: Default::default(), states };
        Image { contents, turn_end, blocks: Vec::new(), n_bytes }
    }
}
