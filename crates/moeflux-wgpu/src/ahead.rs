//! Steps that are recorded while the device is at work on the one before.

use std::mem;

use moeflux_backend::{Cache, PrerecordedStep, Sequence, Span};

use crate::caches::CacheState;
use crate::state::Wgpu;

/// Records the step, if it can be.
pub(crate) fn record(b: &mut Wgpu, ahead: PrerecordedStep<'_>) {
    if !has_room(b, ahead.spans) || !b.encoder.begin_ahead() {
        return;
    }
    b.last_sum = None;
    b.turned.clear();
    let is_whole = (ahead.record)(b);
    b.last_sum = None;
    if !b.encoder.end_ahead(is_whole) {
        undo(b);
    }
}

/// Forgets it.
pub(crate) fn forget(b: &mut Wgpu) {
    if b.encoder.discard_prerecorded() {
        undo(b);
    }
}

/// Whether caches have room for the positions: what is copied to a larger one would be
/// lost with a step that never runs.
fn has_room(b: &Wgpu, spans: &[Span]) -> bool {
    spans.iter().all(|span| {
        let caches = b.sequences[span.sequence.0 as usize].iter().flatten();
        let len = span.position + span.rows.len();
        caches.into_iter().all(|it| match it {
            CacheState::Kv(kv) => kv.has_room(len),
            CacheState::Recurrent(room) => room.is_taken(),
        })
    })
}

/// Exchanges the history of a convolution and where its next one was put.
pub(crate) fn turn(b: &mut Wgpu, sequence: Sequence, cache: Cache) {
    if let CacheState::Recurrent(room) = b.cache(sequence, cache) {
        room.turn();
    }
    if b.encoder.is_ahead() {
        b.turned.push((sequence, cache));
    }
}

/// What was recorded never runs.
fn undo(b: &mut Wgpu) {
    for (sequence, cache) in mem::take(&mut b.turned) {
        turn(b, sequence, cache);
    }
    b.rounded.forget();
}
