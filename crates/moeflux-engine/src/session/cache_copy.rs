//! Copies of a sequence's caches: recurrent states, keys and values.

use std::ops::Range;

use moeflux_backend::{Cache, Sequence};

use crate::engine::Engine;
use crate::error::EngineError;
use crate::positions::checkpoints::States;
use crate::step::Core;

/// Positions of a cache that are copied at once.
const COPIED_POSITIONS: usize = 1024;

/// Copies the recurrent states of a sequence to the host.
pub(super) fn read_states(
    engine: &Engine,
    core: &mut Core,
    sequence: Sequence,
) -> Result<States, EngineError> {
    let read = |cache| core.backend().save_cache(sequence, cache, 0..0);
    let states: Result<Vec<Vec<u8>>, _> = recurrent(engine).map(read).collect();
    Ok(States::from(states?))
}

/// Overwrites the recurrent states of a sequence.
pub(super) fn write_states(
    engine: &Engine,
    core: &mut Core,
    sequence: Sequence,
    states: &States,
) -> Result<(), EngineError> {
    for (cache, bytes) in recurrent(engine).zip(&**states) {
        core.backend().load_cache(sequence, cache, 0..0, bytes)?;
    }
    Ok(())
}

/// Copies the keys and values of the first `end` positions of one sequence to another, which is
/// empty, as far as rows from `end` on see them.
pub(super) fn copy_keys_and_values(
    engine: &Engine,
    core: &mut Core,
    from: Sequence,
    to: Sequence,
    end: usize,
) -> Result<(), EngineError> {
    let caches = engine.shape().caches.iter().zip(0..).filter(|(spec, _)| !spec.is_recurrent());
    for (spec, cache) in caches.map(|(spec, i)| (spec, Cache(i))) {
        for positions in blocks(spec.seen_before(end)) {
            let bytes = core.backend().save_cache(from, cache, positions.clone())?;
            core.backend().load_cache(to, cache, positions, &bytes)?;
        }
    }
    Ok(())
}

/// Fills positions of the multi-token prediction layer's caches with zeros, where the hidden
/// states that they are computed from are not known.
pub(super) fn zero_mtp_caches(
    engine: &Engine,
    core: &mut Core,
    sequence: Sequence,
    positions: Range<usize>,
) -> Result<(), EngineError> {
    let shape = engine.shape();
    let caches = (0..).map(Cache).zip(&shape.caches).skip(shape.own_caches().len());
    for (cache, spec) in caches {
        for positions in blocks(positions.clone()) {
            let zeros = vec![0; spec.saved_bytes(&positions)];
            core.backend().load_cache(sequence, cache, positions, &zeros)?;
        }
    }
    Ok(())
}

fn blocks(positions: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = positions.end;
    positions.step_by(COPIED_POSITIONS).map(move |start| start..end.min(start + COPIED_POSITIONS))
}

/// The recurrent caches of a model.
fn recurrent(engine: &Engine) -> impl Iterator<Item = Cache> {
    let caches = engine.shape().caches.iter().zip(0..);
    caches.filter(|(spec, _)| spec.is_recurrent()).map(|(_, i)| Cache(i))
}
