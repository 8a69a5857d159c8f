//! A step that is recorded and encoded before its tokens are known.

use crate::commands::encoder::Encoder;
use crate::commands::encoder::prerecorded_step::PrerecordedStep;

/// Kernels that are encoded together: threads share out what comes again.
pub(super) const BATCH: usize = 64;

impl Encoder {
    /// Whether what is recorded runs later.
    pub(crate) fn is_prerecording(&self) -> bool {
        self.prerecording.is_active
    }

    /// Begins to record what runs later; false where this cannot be.
    pub(crate) fn begin_prerecording(&mut self) -> bool {
        let has_begun = self.recording.last.is_some()
            || !self.recording.batch.commands.is_empty()
            || !self.uploads.pending.is_empty()
            || self.uploads.staging.is_open();
        if has_begun
            || self.prerecording.step.is_some()
            || self.profiler.clock.is_some()
            || self.is_out_of_memory()
        {
            return false;
        }
        self.recording.batch.arena.clear();
        self.recording.generation += 1;
        (self.recording.n_dispatches, self.recording.most_dispatches) = (0, super::FIRST_BATCH);
        self.prerecording.step = Some(PrerecordedStep::default());
        self.prerecording.is_active = true;
        true
    }

    /// Ends it; false where nothing can be made of what was recorded.
    pub(crate) fn end_prerecording(&mut self, is_whole: bool) -> bool {
        self.encode_prerecorded();
        self.prerecording.is_active = false;
        self.recording.generation += 1;
        self.recording.most_dispatches = super::FIRST_BATCH;
        let mut arena = std::mem::take(&mut self.recording.batch.arena);
        let can_run = is_whole && !self.is_out_of_memory();
        self.prerecording.step =
            self.prerecording.step.take().filter(|step| can_run && !step.is_abandoned);
        if let Some(prerecorded) = &mut self.prerecording.step {
            arena.resize(arena.len().next_multiple_of(4), 0);
            prerecorded.arena = arena;
        }
        self.prerecording.step.is_some()
    }

    /// Encodes what was recorded ahead since the last time.
    pub(super) fn encode_prerecorded(&mut self) {
        self.commit_last();
        self.recording.n_dispatches = 0;
        self.recording.most_dispatches = BATCH;
        let commands = std::mem::take(&mut self.recording.batch.commands);
        if let Some(prerecorded) = &mut self.prerecording.step
            && !prerecorded.is_abandoned
            && !commands.is_empty()
        {
            let encoded = self.submitter.encode(&commands);
            prerecorded.batches.push((commands, encoded));
        }
    }

    /// Gives up what is recorded ahead, as it needs more room than there is.
    pub(super) fn abandon_prerecording(&mut self) {
        self.recording.last = None;
        self.recording.batch.commands.clear();
        self.recording.batch.arena.clear();
        if let Some(prerecorded) = &mut self.prerecording.step {
            *prerecorded = PrerecordedStep { is_abandoned: true, ..PrerecordedStep::default() };
        }
    }

    /// Notes that a list is the tokens of a step.
    pub(crate) fn set_token_list(&mut self, list: u32, n: usize) {
        if let Some(prerecorded) = self.current_step() {
            let at = 4 * list as usize;
            prerecorded.tokens = at..at + 4 * n;
        }
    }

    /// Counts experts that are there, as soon as they are wanted.
    pub(crate) fn count_hits(&mut self, n: usize) {
        match self.current_step() {
            Some(prerecorded) => prerecorded.n_hits += n,
            None => self.counters.add_hits(n),
        }
    }

    /// Counts a kernel, as soon as it runs.
    pub(super) fn count_kernel(&mut self) {
        match self.current_step() {
            Some(prerecorded) => prerecorded.n_kernels += 1,
            None => self.counters.add_kernels(1),
        }
    }

    /// What is recorded, if it is a step ahead.
    fn current_step(&mut self) -> Option<&mut PrerecordedStep> {
        self.prerecording.step.as_mut().filter(|_| self.prerecording.is_active)
    }

    /// Submits what was recorded ahead, for these tokens; false where nothing was.
    pub(crate) fn replay_step(&mut self, tokens: &[u32]) -> bool {
        let Some(mut prerecorded) = self.prerecording.step.take() else { return false };
        prerecorded.arena[prerecorded.tokens].copy_from_slice(bytemuck::cast_slice(tokens));
        self.counters.add_step_ahead(prerecorded.n_kernels, prerecorded.n_hits);
        self.submitter.submit_all(&prerecorded.arena, prerecorded.batches);
        true
    }

    /// Forgets what was recorded ahead; false where nothing was.
    pub(crate) fn discard_prerecorded(&mut self) -> bool {
        self.prerecording.step.take().is_some()
    }

    /// What was recorded ahead is run or dropped before anything else.
    pub(super) fn assert_may_record(&self) {
        assert!(
            self.prerecording.is_active || self.prerecording.step.is_none(),
            "a step waits for its tokens"
        );
    }
}
