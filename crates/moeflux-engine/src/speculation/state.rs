//! What a session keeps in order to draft tokens and to drop the rejected ones.

use moeflux_backend::Sequence;
use moeflux_model::ModelShape;

use crate::speculation::mtp_history::MtpHistory;

/// What a session keeps in order to draft tokens and to drop the rejected ones. None of it
/// decides which tokens are chosen.
#[derive(Debug)]
pub(crate) struct SpeculationState {
    /// Where the model has multi-token prediction.
    pub(crate) mtp: Option<MtpHistory>,
    /// Where drafts were evaluated by a model with recurrent layers.
    pub(crate) rollback: Option<RollbackPoint>,
}

/// A copy of recurrent states from the middle of a step, in a sequence that holds nothing else:
/// those after the last token of the step that is no draft.
#[derive(Debug)]
pub(crate) struct RollbackPoint {
    pub(crate) sequence: Sequence,
    /// The position that the states belong to; `None` where they are not valid.
    pub(crate) position: Option<usize>,
}

impl SpeculationState {
    /// `drafts` says whether the engine speculates. Without, the MTP layer's cache is still
    /// kept complete for snapshots.
    pub(crate) fn new(shape: &ModelShape, drafts: bool) -> SpeculationState {
        let mtp = shape.has_mtp().then(|| MtpHistory::new(shape, drafts));
        SpeculationState { mtp, rollback: None }
    }

    /// The MTP history, where tokens are drafted from it.
    pub(crate) fn drafting(&self) -> Option<&MtpHistory> {
        self.mtp.as_ref().filter(|history| history.drafts)
    }

    /// Takes the hidden states of the rows of a step that began at `position`.
    pub(crate) fn record_hidden(&mut self, position: usize, rows: &[f32]) {
        if let Some(history) = self.mtp.as_mut().filter(|history| history.drafts) {
            history.record(position, rows);
        }
    }

    /// The session ends at `position` now.
    pub(crate) fn truncate(&mut self, position: usize) {
        if let Some(history) = &mut self.mtp {
            history.truncate(position);
        }
    }

    /// The caches hold at most the first `n_cached` positions now.
    pub(crate) fn truncate_cached(&mut self, n_cached: usize) {
        if let Some(history) = &mut self.mtp {
            history.truncate_cached(n_cached);
        }
    }

    /// The MTP layer's cache holds something for every position before `position`, where the
    /// hidden states are not known.
    pub(crate) fn resume_at(&mut self, position: usize) {
        if let Some(history) = &mut self.mtp {
            history.resume_at(position);
        }
    }

    /// Invalidates the rollback point; its memory is kept for the next draft.
    pub(crate) fn discard_rollback(&mut self) {
        if let Some(point) = &mut self.rollback {
            point.position = None;
        }
    }
}
