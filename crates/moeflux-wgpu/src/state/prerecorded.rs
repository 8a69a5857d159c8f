//! Steps that are recorded while the device runs the previous one.

use std::mem;

use moeflux_backend::{Cache, PrerecordedStep, Sequence, Span};

use crate::commands::prerecord;
use crate::memory::caches::cache::CacheState;
use crate::state::gpu::Wgpu;

/// Records the next step, if it can be recorded now.
pub(crate) fn record(b: &mut Wgpu, ahead: PrerecordedStep<'_>) {
    if !has_room(b, ahead.spans) || !prerecord::begin(&mut b.encoder) {
        return;
    }
    b.chain = None;
    b.swapped.clear();
    let is_whole = (ahead.record)(b);
    b.chain = None;
    if !prerecord::end(&mut b.encoder, is_whole) {
        undo(b);
    }
}

/// Discards the prerecorded step.
pub(crate) fn discard(b: &mut Wgpu) {
    if b.encoder.prerecording.discard() {
        undo(b);
    }
}

/// Whether caches have room for the positions: what is copied to a larger one would be
/// lost with a step that never runs.
fn has_room(b: &Wgpu, spans: &[Span]) -> bool {
    spans.iter().all(|span| {
        let caches = b.sequences[span.sequence.0 as usize].iter().flatten();
        let len = span.position + span.rows.len();
        caches.into_iter().all(|cache| match cache {
            CacheState::Kv(kv) => kv.has_room(len),
            CacheState::Recurrent(slot) => slot.is_taken(),
        })
    })
}

/// Exchanges the history of a convolution and where its next one was put.
pub(crate) fn swap_buffers(b: &mut Wgpu, sequence: Sequence, cache: Cache) {
    if let CacheState::Recurrent(slot) = b.cache(sequence, cache) {
        slot.swap_buffers();
    }
    if b.encoder.prerecording.is_active() {
        b.swapped.push((sequence, cache));
    }
}

/// Undoes the effects of recording a step that never runs.
fn undo(b: &mut Wgpu) {
    for (sequence, cache) in mem::take(&mut b.swapped) {
        swap_buffers(b, sequence, cache);
    }
    b.rounded.forget();
}
