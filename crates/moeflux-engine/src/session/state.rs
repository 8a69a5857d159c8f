//! What a session has computed, and what it can return to.

use std::borrow::Cow;
use std::ops::Range;

use moeflux_backend::{Sequence, Span, StateSnapshot};
use moeflux_core::TokenId;
use moeflux_model::ModelShape;
use smallvec::SmallVec;

use crate::engine::Engine;
use crate::error::{EngineError, RowError};
use crate::positions::checkpoints::StateCheckpoints;
use crate::positions::pictures::{PictureRow, PlacedPicture};
use crate::positions::timeline::Timeline;
use crate::positions::windows::WindowCuts;
use crate::rows::{RequestedRows, TableRows};
use crate::speculation::options::Speculation;
use crate::speculation::state::SpeculationState;

/// What a step takes of one session.
pub(super) struct StepRows<'a> {
    /// Tokens of the vocabulary.
    pub(super) tokens: Cow<'a, [TokenId]>,
    /// Their spans, of rows from 0 on. A step that decodes one token allocates nothing for them.
    pub(super) spans: SmallVec<[Span; 1]>,
    /// The rows among them that are pictures'.
    pub(super) pictures: Vec<PictureRow>,
}

/// The tokens of a session, its sequence on the device, and the positions to which that can be cut.
pub(crate) struct SessionState {
    pub(crate) sequence: Sequence,
    pub(crate) timeline: Timeline,
    pub(crate) checkpoints: StateCheckpoints,
    pub(crate) windows: WindowCuts,
    pub(crate) speculation: SpeculationState,
    /// Rows of tokens of the next step, requested before that begins.
    pub(crate) requested: Vec<RequestedRows>,
    /// Whether the model has states that cannot be cut.
    is_recurrent: bool,
}

impl SessionState {
    /// That of an empty session.
    pub(super) fn new(engine: &Engine) -> SessionState {
        let shape = engine.shape();
        let drafts = engine.speculation() != Speculation::Off;
        SessionState {
            sequence: engine.core().backend().new_sequence(&shape.caches),
            timeline: Timeline::default(),
            checkpoints: StateCheckpoints::new(engine.plan().checkpoint_bytes),
            windows: WindowCuts::new(shape.window()),
            speculation: SpeculationState::new(shape, drafts),
            requested: Vec::new(),
            is_recurrent: shape.is_recurrent(),
        }
    }

    /// The position of the next token.
    pub(crate) fn position(&self) -> usize {
        self.timeline.position()
    }

    /// Tokens that the caches do not hold and that the next step evaluates first.
    pub(crate) fn n_pending(&self) -> usize {
        self.timeline.pending().len()
    }

    /// The tokens in front of a position that rows of tables depend on, where a step begins with `first`
    /// at the end of the caches.
    pub(super) fn tokens_before(
        &self,
        position: usize,
        rows: Option<&TableRows>,
        first: &[TokenId],
    ) -> Vec<TokenId> {
        let context = rows.map_or(0, TableRows::context);
        let n_cached = self.timeline.n_cached();
        let n_first = position - n_cached;
        let of_step = &first[n_first.saturating_sub(context)..n_first];
        let mut before =
            self.timeline.vocabulary_before(n_cached, context.saturating_sub(of_step.len()));
        let at = position - of_step.len();
        before.extend_from_slice(&self.timeline.pictures().in_vocabulary(at, of_step));
        before
    }

    /// What a step takes for tokens from `position` on, which is the end of the caches or before: pending
    /// tokens and those that follow.
    ///
    /// # Errors
    /// Where a picture among them is in memory no more.
    pub(super) fn step_rows<'a>(
        &self,
        position: usize,
        tokens: &'a [TokenId],
        shape: &ModelShape,
    ) -> Result<StepRows<'a>, RowError> {
        let (timeline, end) = (&self.timeline, position + tokens.len());
        let pictures = timeline.pictures();
        Ok(StepRows {
            tokens: pictures.in_vocabulary(position, tokens),
            spans: self.spans(position..end, shape.rotary_before),
            pictures: pictures.rows(position..end)?,
        })
    }

    /// The spans of some positions: one, or with pictures that see themselves whole one for each of these
    /// and for the rows between them.
    fn spans(&self, positions: Range<usize>, n_before: usize) -> SmallVec<[Span; 1]> {
        let timeline = &self.timeline;
        let (start, end) = (positions.start, positions.end);
        let whole = timeline.pictures().iter().filter(|picture| picture.is_whole);
        let whole = whole.map(PlacedPicture::range);
        let whole = whole.filter(|range| start <= range.start && range.end <= end);
        let mut spans = SmallVec::new();
        let mut push = |range: Range<usize>, ahead_to: Option<usize>| {
            if range.is_empty() {
                return;
            }
            let rows = range.start - start..range.end - start;
            let span = Span::new(self.sequence, rows, range.start);
            let rotary = timeline.rotary(range);
            // Models whose rows go by those before them do not see pictures whole: there is one span.
            let rotary_before = timeline.rotary_before(n_before);
            let ahead_to = ahead_to.unwrap_or(span.ahead_to);
            spans.push(Span { rotary, rotary_before, ahead_to, ..span });
        };
        let mut done = start;
        for range in whole {
            push(done..range.start, None);
            done = range.end;
            push(range, Some(done));
        }
        push(done..end, None);
        spans
    }

    /// The earlier positions to which the session can return without evaluating tokens again;
    /// `None` where it can return to any.
    pub(super) fn cut_points(&self) -> Option<Vec<usize>> {
        if self.is_recurrent {
            Some(self.checkpoints.positions())
        } else {
            self.windows.positions()
        }
    }

    /// The last position at or before `limit` to which the caches can be cut.
    pub(super) fn nearest(&self, limit: usize) -> usize {
        if self.is_recurrent {
            self.checkpoints.nearest(limit)
        } else {
            self.windows.nearest(limit)
        }
    }

    /// Whether the caches can be cut at certain positions only.
    pub(super) fn has_cut_points(&self) -> bool {
        self.is_recurrent || self.windows.from() > 0
    }

    /// The longest prefix of `tokens`, of `limit` at most, that the session holds and can be cut
    /// to.
    pub(crate) fn common_prefix(&self, tokens: &[TokenId], limit: usize) -> usize {
        if self.timeline.n_unknown() > 0 {
            return 0;
        }
        let equal = self.timeline.tokens().iter().zip(tokens).take_while(|(a, b)| a == b).count();
        let n_common = equal.min(limit).min(self.timeline.n_told());
        if n_common == self.position() { n_common } else { self.nearest(n_common) }
    }

    /// Checks that the tokens alone say what the caches hold.
    pub(super) fn check_plain(&self) -> Result<(), EngineError> {
        if self.timeline.n_told() == self.position() {
            Ok(())
        } else {
            Err(RowError::CannotBeSaved.into())
        }
    }

    /// Forgets the tokens from `position` on; the caches are cut apart from that.
    pub(super) fn truncate(&mut self, position: usize) {
        self.timeline.truncate(position);
        self.speculation.truncate(position);
    }

    /// Records that the caches hold the first `n_cached` positions.
    pub(super) fn truncate_cached(&mut self, n_cached: usize) {
        self.timeline.truncate_cached(n_cached);
        self.speculation.truncate_cached(n_cached);
    }

    /// The copy of recurrent states that a step makes after the first `rows` rows of this
    /// session, where drafts begin; `None` where the model has no recurrent states.
    pub(super) fn rollback_snapshot(&self, rows: usize) -> Option<StateSnapshot> {
        let point = self.speculation.rollback.as_ref().filter(|_| self.is_recurrent)?;
        Some(StateSnapshot { sequence: self.sequence, rows, to: point.sequence })
    }

    /// Records the position of the states that a step has copied.
    pub(super) fn set_rollback_position(&mut self, position: usize) {
        if let Some(point) = &mut self.speculation.rollback {
            point.position = Some(position);
        }
    }

    /// Whether the hidden state of the last position is known, from which the MTP layer drafts.
    pub(crate) fn can_mtp_draft(&self) -> bool {
        let end = self.position() + 1;
        self.speculation.drafting().is_some_and(|history| history.end() == end)
    }

    /// Entries that the MTP cache lacks.
    pub(crate) fn n_missing_entries(&self) -> usize {
        let drafting = self.speculation.drafting().filter(|_| self.can_mtp_draft());
        drafting.map_or(0, |history| self.position().saturating_sub(history.n_entries))
    }
}
