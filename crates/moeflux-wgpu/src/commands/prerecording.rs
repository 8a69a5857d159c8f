//! The step that is recorded before its tokens are known.

use std::ops::Range;
use std::sync::Arc;

use moeflux_backend::DeviceCounters;

use crate::commands::command::Encoded;
use crate::commands::recording::Recording;
use crate::commands::serials::Serials;

/// The step ahead, and what is counted as soon as it runs.
#[derive(Debug)]
pub(crate) struct Prerecording {
    pub(super) step: Option<PrerecordedStep>,
    /// Whether it is being recorded.
    pub(super) is_active: bool,
    counters: Arc<DeviceCounters>,
}

/// Commands that are submitted as soon as the tokens are known.
#[derive(Debug, Default)]
pub(super) struct PrerecordedStep {
    pub(super) batches: Vec<Encoded>,
    /// Lists and parameters of all of them.
    pub(super) arena: Vec<u8>,
    /// Where in these the tokens stand.
    pub(super) tokens: Range<usize>,
    /// Kernels, and experts that these find on the device.
    pub(super) n_kernels: usize,
    pub(super) n_hits: usize,
    /// Where in these the serial numbers of the batches stand.
    serials: Vec<usize>,
    /// Whether it was too long.
    pub(super) is_abandoned: bool,
}

impl PrerecordedStep {
    /// Has room for the serial number of the batch that is being recorded; gives its first byte.
    pub(super) fn add_serial(&mut self, recording: &mut Recording) -> u32 {
        let params = recording.params(&[0]);
        self.serials.push(params as usize);
        params
    }

    /// Numbers the batches, which are about to run.
    pub(super) fn set_serials(&mut self, serials: &mut Serials) {
        for at in self.serials.drain(..) {
            self.arena[at..at + 4].copy_from_slice(&serials.next().to_le_bytes());
        }
    }
}

impl Prerecording {
    pub(super) fn new(counters: Arc<DeviceCounters>) -> Prerecording {
        Prerecording { step: None, is_active: false, counters }
    }

    /// Whether what is recorded runs later.
    pub(crate) fn is_active(&self) -> bool {
        self.is_active
    }

    /// Notes that a list is the tokens of a step.
    pub(crate) fn set_token_list(&mut self, list: u32, n: usize) {
        if let Some(step) = self.current_step() {
            let at = 4 * list as usize;
            step.tokens = at..at + 4 * n;
        }
    }

    /// Counts experts that are there, as soon as they are wanted.
    pub(crate) fn count_hits(&mut self, n: usize) {
        match self.current_step() {
            Some(step) => step.n_hits += n,
            None => self.counters.add_hits(n),
        }
    }

    /// Counts a kernel, as soon as it runs.
    pub(super) fn count_kernel(&mut self) {
        match self.current_step() {
            Some(step) => step.n_kernels += 1,
            None => self.counters.add_kernels(1),
        }
    }

    /// The step ahead, if it is being recorded.
    fn current_step(&mut self) -> Option<&mut PrerecordedStep> {
        self.step.as_mut().filter(|_| self.is_active)
    }

    /// Gives up what is recorded ahead, as it needs more room than there is.
    pub(super) fn abandon(&mut self) {
        if let Some(step) = &mut self.step {
            *step = PrerecordedStep { is_abandoned: true, ..PrerecordedStep::default() };
        }
    }

    /// Forgets what was recorded ahead; false where nothing was.
    pub(crate) fn discard(&mut self) -> bool {
        self.step.take().is_some()
    }

    /// What was recorded ahead is run or dropped before anything else.
    pub(super) fn assert_may_record(&self) {
        assert!(self.is_active || self.step.is_none(), "a step waits for its tokens");
    }
}
