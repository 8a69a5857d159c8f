//! A step that is recorded and encoded before its tokens are known.

use super::Encoder;
use crate::encoder::Ahead;

/// Kernels that are encoded together: threads share out what comes again.
pub(super) const BATCH: usize = 64;

impl Encoder {
    /// Whether what is recorded runs later.
    pub(crate) fn is_ahead(&self) -> bool {
        self.is_ahead
    }

    /// Begins to record what runs later; false where this cannot be.
    pub(crate) fn begin_ahead(&mut self) -> bool {
        let has_begun = self.last.is_some()
            || !self.batch.commands.is_empty()
            || !self.coming.is_empty()
            || self.staging.is_open();
        if has_begun || self.ahead.is_some() || self.clock.is_some() || self.has_run_out() {
            return false;
        }
        self.batch.arena.clear();
        self.generation += 1;
        (self.n_dispatches, self.most_dispatches) = (0, super::FIRST_BATCH);
        self.ahead = Some(Ahead::default());
        self.is_ahead = true;
        true
    }

    /// Ends it; false where nothing can be made of what was recorded.
    pub(crate) fn end_ahead(&mut self, is_whole: bool) -> bool {
        self.cut_ahead();
        self.is_ahead = false;
        self.generation += 1;
        self.most_dispatches = super::FIRST_BATCH;
        let mut arena = std::mem::take(&mut self.batch.arena);
        let can_run = is_whole && !self.has_run_out();
        self.ahead = self.ahead.take().filter(|it| can_run && !it.is_spoilt);
        if let Some(ahead) = &mut self.ahead {
            arena.resize(arena.len().next_multiple_of(4), 0);
            ahead.arena = arena;
        }
        self.ahead.is_some()
    }

    /// Encodes what was recorded ahead since the last time.
    pub(super) fn cut_ahead(&mut self) {
        self.settle();
        self.n_dispatches = 0;
        self.most_dispatches = BATCH;
        let commands = std::mem::take(&mut self.batch.commands);
        if let Some(ahead) = &mut self.ahead
            && !ahead.is_spoilt
            && !commands.is_empty()
        {
            let encoded = self.recorder.encode(&commands);
            ahead.batches.push((commands, encoded));
        }
    }

    /// Gives up what is recorded ahead, as it needs more room than there is.
    pub(super) fn spoil_ahead(&mut self) {
        self.last = None;
        self.batch.commands.clear();
        self.batch.arena.clear();
        if let Some(ahead) = &mut self.ahead {
            *ahead = Ahead { is_spoilt: true, ..Ahead::default() };
        }
    }

    /// Notes that a list is the tokens of a step.
    pub(crate) fn note_tokens(&mut self, list: u32, n: usize) {
        if let Some(ahead) = self.recorded_ahead() {
            let at = 4 * list as usize;
            ahead.tokens = at..at + 4 * n;
        }
    }

    /// Counts experts that are there, as soon as they are wanted.
    pub(crate) fn count_hits(&mut self, n: usize) {
        match self.recorded_ahead() {
            Some(ahead) => ahead.n_hits += n,
            None => self.counters.add_hits(n),
        }
    }

    /// Counts a kernel, as soon as it runs.
    pub(super) fn count_kernel(&mut self) {
        match self.recorded_ahead() {
            Some(ahead) => ahead.n_kernels += 1,
            None => self.counters.add_kernels(1),
        }
    }

    /// What is recorded, if it is a step ahead.
    fn recorded_ahead(&mut self) -> Option<&mut Ahead> {
        self.ahead.as_mut().filter(|_| self.is_ahead)
    }

    /// Submits what was recorded ahead, for these tokens; false where nothing was.
    pub(crate) fn replay_step(&mut self, tokens: &[u32]) -> bool {
        let Some(mut ahead) = self.ahead.take() else { return false };
        ahead.arena[ahead.tokens].copy_from_slice(bytemuck::cast_slice(tokens));
        self.counters.add_step_ahead(ahead.n_kernels, ahead.n_hits);
        self.recorder.submit_all(&ahead.arena, ahead.batches);
        true
    }

    /// Forgets what was recorded ahead; false where nothing was.
    pub(crate) fn discard_prerecorded(&mut self) -> bool {
        self.ahead.take().is_some()
    }

    /// What was recorded ahead is run or dropped before anything else.
    pub(super) fn assert_may_record(&self) {
        assert!(self.is_ahead || self.ahead.is_none(), "a step waits for its tokens");
    }
}
