//! Steps that continue several sessions at once. An expert that more than one of them routes to
//! is read once for all.

use std::collections::BTreeMap;

use moeflux_backend::{RotaryPositions, Span, StateSnapshot};
use moeflux_core::TokenId;
use moeflux_model::EmbeddedRow;

use super::checks::check_input;
use super::evaluator::Evaluator;
use super::handle::Session;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::positions::input::{ChunkInput, InputRow, RowInput};
use crate::positions::timeline::PlacedRow;
use crate::speculation::limits::MAX_STEP_ROWS;
use crate::step::{Batch, Core, LogitRows, Logits, Outputs, RowLogits};

/// The rows of one session in a batch.
pub struct SequenceChunk<'a> {
    /// The session that the rows continue.
    pub session: &'a mut Session,
    /// At least one row.
    pub input: ChunkInput<'a>,
    /// Whether the logits after the last row are returned.
    pub wants_logits: bool,
    /// Whether a checkpoint is made at the end, as far as the budget allows.
    pub checkpoint_after: bool,
}

/// The tokens of one session in a batch, of which the last ones may be drafts. Drafts that turn
/// out to be wrong are removed with [`Session::roll_back`]. Rows that are no tokens have no drafts.
pub(crate) struct DraftChunk<'a> {
    pub(crate) chunk: SequenceChunk<'a>,
    /// How many of the tokens are drafts. If logits are wanted, they are returned after the
    /// token before the drafts and after each draft.
    pub(crate) n_drafted: usize,
    /// How many of the last rows have their logits returned, whatever else is wanted.
    pub(crate) n_scored: usize,
}

impl DraftChunk<'_> {
    /// Its rows if the step evaluates pending tokens too.
    fn n_rows(&self) -> usize {
        self.chunk.session.state.n_pending() + self.chunk.input.len()
    }

    /// Rows whose logits are wanted.
    fn n_wanted(&self) -> usize {
        let n_chosen = if self.chunk.wants_logits { 1 + self.n_drafted } else { 0 };
        n_chosen.max(self.n_scored)
    }
}

/// Evaluates rows of several sessions of one engine in a single step. Returns the logits after
/// each chunk that wants any, in the order of the chunks. The bits are those that each session
/// would compute alone.
///
/// # Errors
/// Where tokens are outside the vocabulary or do not fit a session's context, those of
/// [`RowError`](crate::RowError), or where an expert or the device fails; every session is as before
/// then.
///
/// # Panics
/// Where there are more rows than a step has by [`Plan::chunk`](crate::Plan), or sessions of
/// different engines.
pub fn eval_batch(chunks: &mut [SequenceChunk<'_>]) -> Result<Vec<Option<Logits>>, EngineError> {
    let mut chunks: Vec<DraftChunk<'_>> = chunks
        .iter_mut()
        .map(|SequenceChunk { session, input, wants_logits, checkpoint_after }| {
            let (wants_logits, checkpoint_after) = (*wants_logits, *checkpoint_after);
            let input = *input;
            let chunk = SequenceChunk { session, input, wants_logits, checkpoint_after };
            DraftChunk { chunk, n_drafted: 0, n_scored: 0 }
        })
        .collect();
    let all = |row: RowLogits| match row {
        RowLogits::All(logits) => logits,
        RowLogits::Top(_) => unreachable!("all logits are wanted"),
    };
    let logits = eval_draft_batch(&mut chunks, None)?;
    Ok(logits.into_iter().map(|mut rows| rows.pop().map(all)).collect())
}

/// Evaluates tokens and drafts of several sessions in a single step. Returns for each chunk that
/// wants logits those after the last token that is no draft, and after each draft: the `n_top`
/// highest where the device selects them, or with `None` all.
///
/// # Errors
/// As [`eval_batch`].
///
/// # Panics
/// As [`eval_batch`].
pub(crate) fn eval_draft_batch(
    chunks: &mut [DraftChunk<'_>],
    n_top: Option<usize>,
) -> Result<Vec<Vec<RowLogits>>, EngineError> {
    let Some(first) = chunks.first() else { return Ok(Vec::new()) };
    let engine = first.chunk.session.engine.clone();
    let n_rows: usize = chunks.iter().map(|chunk| chunk.chunk.input.len()).sum();
    assert!(n_rows <= engine.plan().chunk, "{n_rows} rows are more than a step has");
    for DraftChunk { chunk, .. } in &*chunks {
        assert!(chunk.session.engine.is(&engine), "sessions of one step share their engine");
        check_input(&engine, &chunk.session.state, chunk.input)?;
    }
    let core = &mut *engine.core();
    let layout = lay_out(&engine, core, chunks, engine.plan().chunk.min(MAX_STEP_ROWS))?;
    let Layout { spans, tokens, embedded, placed } = &layout;
    let before = chunks.iter().zip(spans);
    let tokens_before = |(chunk, span): (&DraftChunk<'_>, &Span)| {
        chunk.chunk.session.state.tokens_before(span.position, engine.rows())
    };
    let before: Vec<Vec<TokenId>> = before.map(tokens_before).collect();
    let drafts = chunks.iter().zip(spans).filter(|(chunk, _)| chunk.n_drafted > 0);
    let snapshots: Vec<StateSnapshot> = drafts
        .filter_map(|(chunk, span)| {
            chunk.chunk.session.state.rollback_snapshot(span.rows.len() - chunk.n_drafted)
        })
        .collect();
    let rows = wanted_rows(chunks, spans);
    let reads_hidden =
        chunks.iter().any(|chunk| chunk.chunk.session.state.speculation.drafting().is_some());
    let hidden_rows = if reads_hidden { tokens.len() } else { 0 };
    let outputs = Outputs { rows: &rows, n_top, hidden_rows };
    let before = &before[..];
    let batch = Batch { spans, tokens, embedded, before, snapshots: &snapshots, outputs };
    let outcome = core.step(&batch).and_then(|output| {
        record_step(chunks, &batch, placed, &output.hidden);
        finish_chunks(&engine, core, chunks, output.logits)
    });
    if outcome.is_err() {
        for (DraftChunk { chunk, .. }, span) in chunks.iter_mut().zip(spans) {
            let state = &mut chunk.session.state;
            let is_recorded = state.timeline.n_cached() > span.position;
            let n_new = if is_recorded { chunk.input.len() } else { 0 };
            let position = state.position() - n_new;
            Evaluator { engine: &engine, core, state }.undo(position, span.position);
        }
    }
    outcome
}

/// The rows of a step.
#[derive(Default)]
struct Layout<'a> {
    spans: Vec<Span>,
    tokens: Vec<TokenId>,
    embedded: Vec<EmbeddedRow<'a>>,
    /// By chunk, where its rows are not all tokens at their own positions.
    placed: BTreeMap<usize, Vec<PlacedRow>>,
}

/// The rows of a step. Pending tokens of the sessions are part of it if all fit into
/// `max_rows`; else they are evaluated now.
fn lay_out<'a>(
    engine: &Engine,
    core: &mut Core,
    chunks: &mut [DraftChunk<'a>],
    max_rows: usize,
) -> Result<Layout<'a>, EngineError> {
    let takes_pending = chunks.iter().map(DraftChunk::n_rows).sum::<usize>() <= max_rows;
    let spans = Vec::with_capacity(chunks.len());
    let mut layout = Layout { spans, ..Layout::default() };
    for (nth, DraftChunk { chunk, n_drafted, .. }) in chunks.iter_mut().enumerate() {
        let state = &mut chunk.session.state;
        if *n_drafted == 0 {
            state.speculation.discard_rollback();
        }
        if !takes_pending {
            Evaluator { engine, core, state }.replay()?;
        }
        let (start, timeline) = (layout.tokens.len(), &state.timeline);
        layout.tokens.extend_from_slice(timeline.pending());
        let mut rotary = timeline.rotary();
        match chunk.input {
            ChunkInput::Tokens(tokens) => layout.tokens.extend_from_slice(tokens),
            ChunkInput::Rows(rows) => {
                layout.push_rows(rows);
                let placed = timeline.place(rows);
                if !timeline.are_plain(&placed) {
                    rotary = RotaryPositions::Each(placed.iter().map(|row| row.position).collect());
                    layout.placed.insert(nth, placed);
                }
            }
        }
        let (rows, position) = (start..layout.tokens.len(), timeline.n_cached());
        layout.spans.push(Span { rotary, ..Span::new(state.sequence, rows, position) });
    }
    Ok(layout)
}

impl<'a> Layout<'a> {
    /// Appends rows. Where one is embedded, any token stands for it.
    fn push_rows(&mut self, rows: &'a [InputRow<'a>]) {
        for row in rows {
            let token = match row.input {
                RowInput::Token(token) => token,
                RowInput::Embedding { values, deepstack } => {
                    let row = self.tokens.len();
                    self.embedded.push(EmbeddedRow { row, values, deepstack });
                    TokenId(0)
                }
            };
            self.tokens.push(token);
        }
    }
}

/// The rows of a step whose logits are wanted, in the order of the chunks.
fn wanted_rows(chunks: &[DraftChunk<'_>], spans: &[Span]) -> Vec<usize> {
    let ends = chunks.iter().zip(spans);
    ends.flat_map(|(chunk, span)| span.rows.end - chunk.n_wanted()..span.rows.end).collect()
}

/// Records in every session what a step has put into its caches.
fn record_step(
    chunks: &mut [DraftChunk<'_>],
    batch: &Batch<'_>,
    placed: &BTreeMap<usize, Vec<PlacedRow>>,
    hidden: &[f32],
) {
    let width = hidden.len() / batch.tokens.len().max(1);
    let chunks = chunks.iter_mut().zip(batch.spans).enumerate();
    for (nth, (DraftChunk { chunk, n_drafted, .. }, span)) in chunks {
        let state = &mut chunk.session.state;
        match placed.get(&nth) {
            Some(rows) => state.timeline.extend_placed(rows),
            None => state.timeline.extend_cached(&batch.tokens[span.rows.clone()]),
        }
        state.requested.clear();
        if *n_drafted > 0 {
            state.set_rollback_position(state.timeline.n_cached() - *n_drafted);
        }
        if !hidden.is_empty() {
            let rows = &hidden[span.rows.start * width..span.rows.end * width];
            state.speculation.record_hidden(span.position, rows);
        }
    }
}

/// Makes the checkpoints that are due, and sorts the logits of a step by chunk.
fn finish_chunks(
    engine: &Engine,
    core: &mut Core,
    chunks: &mut [DraftChunk<'_>],
    logits: LogitRows,
) -> Result<Vec<Vec<RowLogits>>, EngineError> {
    let mut logits = logits.into_iter();
    let mut results = Vec::with_capacity(chunks.len());
    for chunk in chunks {
        results.push(logits.by_ref().take(chunk.n_wanted()).collect());
        if chunk.n_drafted == 0 {
            let SequenceChunk { session, checkpoint_after, .. } = &mut chunk.chunk;
            let mut evaluator = Evaluator { engine, core, state: &mut session.state };
            evaluator.checkpoint_if_due(*checkpoint_after)?;
            evaluator.fill_mtp_cache_if_long();
        }
    }
    Ok(results)
}
