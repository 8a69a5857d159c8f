//! Recording of a step before its tokens are known, and its run as soon as they are.

use crate::commands::encoder::Encoder;
use crate::commands::prerecording::PrerecordedStep;
use crate::commands::recording::FIRST_BATCH;

/// Begins to record what runs later; false where this cannot be.
pub(crate) fn begin(encoder: &mut Encoder) -> bool {
    let has_begun = !encoder.recording.is_empty()
        || !encoder.uploads.pending.is_empty()
        || encoder.uploads.staging.is_open();
    if has_begun
        || encoder.prerecording.step.is_some()
        || encoder.profiler.clock.is_some()
        || encoder.buffers.is_out_of_memory()
    {
        return false;
    }
    encoder.recording.discard();
    encoder.recording.generation += 1;
    (encoder.recording.n_dispatches, encoder.recording.most_dispatches) = (0, FIRST_BATCH);
    encoder.prerecording.step = Some(PrerecordedStep::default());
    encoder.prerecording.is_active = true;
    true
}

/// Ends it; false where nothing can be made of what was recorded.
pub(crate) fn end(encoder: &mut Encoder, is_whole: bool) -> bool {
    encoder.encode_prerecorded();
    let can_run = is_whole && !encoder.buffers.is_out_of_memory();
    let Encoder { recording, prerecording, .. } = encoder;
    prerecording.is_active = false;
    recording.generation += 1;
    recording.most_dispatches = FIRST_BATCH;
    let mut arena = std::mem::take(&mut recording.batch.arena);
    prerecording.step = prerecording.step.take().filter(|step| can_run && !step.is_abandoned);
    if let Some(step) = &mut prerecording.step {
        arena.resize(arena.len().next_multiple_of(4), 0);
        step.arena = arena;
    }
    prerecording.step.is_some()
}

/// Submits what was recorded ahead, for these tokens; false where nothing was.
pub(crate) fn replay(encoder: &mut Encoder, tokens: &[u32]) -> bool {
    let Some(mut step) = encoder.prerecording.step.take() else { return false };
    step.set_serials(&mut encoder.serials);
    step.arena[step.tokens].copy_from_slice(bytemuck::cast_slice(tokens));
    encoder.counters.add_step_ahead(step.n_kernels, step.n_hits);
    encoder.submitter.submit_all(&step.arena, step.batches);
    true
}
