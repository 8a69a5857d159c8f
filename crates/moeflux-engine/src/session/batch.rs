//! Steps that continue several sessions at once. An expert that more than one of them routes to
//! is read once for all.

use std::ops::Range;

use moeflux_backend::{RotaryPositions, Span, StateSnapshot};
use moeflux_core::TokenId;
use moeflux_model::EmbeddedRow;

use super::checks::{check_alone, check_input};
use super::evaluator::Evaluator;
use super::handle::Session;
use super::state::SessionState;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::positions::input::{ChunkInput, InputRow, RowInput};
use crate::positions::pictures::{PictureRow, embedded_rows};
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
        check_alone(&engine, chunk.input)?;
    }
    let core = &mut *engine.core();
    let layout = lay_out(&engine, core, chunks, engine.plan().chunk.min(MAX_STEP_ROWS))?;
    let Layout { parts, spans, tokens, before, given, pictures } = &layout;
    let drafts = chunks.iter().zip(parts).filter(|(chunk, _)| chunk.n_drafted > 0);
    let snapshots: Vec<StateSnapshot> = drafts
        .filter_map(|(chunk, part)| {
            chunk.chunk.session.state.rollback_snapshot(part.rows.len() - chunk.n_drafted)
        })
        .collect();
    let rows = wanted_rows(chunks, parts);
    let reads_hidden =
        chunks.iter().any(|chunk| chunk.chunk.session.state.speculation.drafting().is_some());
    let hidden_rows = if reads_hidden { tokens.len() } else { 0 };
    let outputs = Outputs { rows: &rows, n_top, hidden_rows };
    let deepstack: Vec<Vec<&[f32]>> = pictures.iter().map(PictureRow::deepstack).collect();
    let seen = embedded_rows(pictures, &deepstack);
    let embedded: Vec<EmbeddedRow<'_>> = given.iter().copied().chain(seen).collect();
    let (embedded, snapshots) = (&embedded[..], &snapshots[..]);
    let batch = Batch { spans, tokens, embedded, before, snapshots, outputs };
    let outcome = core.step(&batch).and_then(|output| {
        record_step(chunks, parts, &output.hidden, tokens.len());
        finish_chunks(&engine, core, chunks, output.logits)
    });
    if outcome.is_err() {
        for (DraftChunk { chunk, .. }, part) in chunks.iter_mut().zip(parts) {
            let state = &mut chunk.session.state;
            let is_recorded = state.timeline.n_cached() > part.position;
            let n_new = if is_recorded { chunk.input.len() } else { 0 };
            let position = state.position() - n_new;
            Evaluator { engine: &engine, core, state }.undo(position, part.position);
        }
    }
    outcome
}

/// The rows of a step.
#[derive(Default)]
struct Layout<'a> {
    /// By chunk.
    parts: Vec<ChunkPart>,
    spans: Vec<Span>,
    /// Tokens of the vocabulary.
    tokens: Vec<TokenId>,
    /// By span, the tokens in front of it that rows of tables depend on.
    before: Vec<Vec<TokenId>>,
    /// Rows that the caller gave as embeddings.
    given: Vec<EmbeddedRow<'a>>,
    /// Rows of pictures.
    pictures: Vec<PictureRow>,
}

/// What a step has of a chunk.
struct ChunkPart {
    /// Its rows of the step.
    rows: Range<usize>,
    /// The position of the first.
    position: usize,
    input: PartInput,
}

/// What a session records of its rows.
enum PartInput {
    /// Tokens, those of pictures as the prompt has them.
    Tokens(Vec<TokenId>),
    /// Rows that are not all tokens at their own positions.
    Placed(Vec<PlacedRow>),
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
    for DraftChunk { chunk, n_drafted, .. } in chunks.iter_mut() {
        let state = &mut chunk.session.state;
        if *n_drafted == 0 {
            state.speculation.discard_rollback();
        }
        // Rows that were given say where they stand, which those before them decide.
        if !takes_pending || matches!(chunk.input, ChunkInput::Rows(_)) {
            Evaluator { engine, core, state }.replay()?;
        }
        match chunk.input {
            ChunkInput::Tokens(tokens) => layout.push_tokens(engine, state, tokens)?,
            ChunkInput::Rows(rows) => layout.push_rows(engine, state, rows),
        }
    }
    Ok(layout)
}

impl<'a> Layout<'a> {
    /// Appends pending tokens of a session and those that follow.
    fn push_tokens(
        &mut self,
        engine: &Engine,
        state: &SessionState,
        tokens: &[TokenId],
    ) -> Result<(), EngineError> {
        let (timeline, first) = (&state.timeline, self.tokens.len());
        let all = [timeline.pending(), tokens].concat();
        let (position, n_rows) = (timeline.n_cached(), all.len());
        let rows = state.step_rows(position, &all, engine.shape())?;
        self.tokens.extend_from_slice(&rows.tokens);
        let spans = rows
            .spans
            .into_iter()
            .map(|span| Span { rows: first + span.rows.start..first + span.rows.end, ..span });
        self.before.extend(
            spans.clone().map(|span| state.tokens_before(span.position, engine.rows(), &all)),
        );
        self.spans.extend(spans);
        self.pictures.extend(rows.pictures.into_iter().map(|picture| picture.behind(first)));
        let input = PartInput::Tokens(all);
        self.parts.push(ChunkPart { rows: first..first + n_rows, position, input });
        Ok(())
    }

    /// Appends rows to a session without pending tokens. Where one is embedded, any token stands for it.
    fn push_rows(&mut self, engine: &Engine, state: &SessionState, rows: &'a [InputRow<'a>]) {
        let (timeline, first) = (&state.timeline, self.tokens.len());
        for (nth, row) in rows.iter().enumerate() {
            if let RowInput::Embedding { values, deepstack, .. } = row.input {
                self.given.push(EmbeddedRow { row: first + nth, values, deepstack });
            }
        }
        let listed: Vec<TokenId> = rows.iter().map(InputRow::listed).collect();
        let position = timeline.n_cached();
        self.tokens.extend_from_slice(&timeline.pictures().in_vocabulary(position, &listed));
        let its = first..self.tokens.len();
        let placed = timeline.place(rows);
        let is_plain = timeline.are_plain(&placed);
        let shape = engine.shape();
        let mut span = Span::new(state.sequence, its.clone(), position);
        span.rotary_before = timeline.rotary_before(shape.rotary_before);
        if shape.sees_pictures_whole && rows.iter().all(InputRow::is_embedding) {
            span.ahead_to = position + rows.len();
        }
        if !is_plain {
            span.rotary = RotaryPositions::Each(placed.iter().map(|row| row.position).collect());
        }
        self.before.push(state.tokens_before(position, engine.rows(), &[]));
        self.spans.push(span);
        let input = PartInput::Placed(placed);
        self.parts.push(ChunkPart { rows: its, position, input });
    }
}

/// The rows of a step whose logits are wanted, in the order of the chunks.
fn wanted_rows(chunks: &[DraftChunk<'_>], parts: &[ChunkPart]) -> Vec<usize> {
    let ends = chunks.iter().zip(parts);
    ends.flat_map(|(chunk, part)| part.rows.end - chunk.n_wanted()..part.rows.end).collect()
}

/// Records in every session what a step of `n_rows` has put into its caches.
fn record_step(chunks: &mut [DraftChunk<'_>], parts: &[ChunkPart], hidden: &[f32], n_rows: usize) {
    let width = hidden.len() / n_rows.max(1);
    for (DraftChunk { chunk, n_drafted, .. }, part) in chunks.iter_mut().zip(parts) {
        let state = &mut chunk.session.state;
        match &part.input {
            PartInput::Placed(rows) => state.timeline.extend_placed(rows),
            PartInput::Tokens(tokens) => state.timeline.extend_cached(tokens),
        }
        state.requested.clear();
        if *n_drafted > 0 {
            state.set_rollback_position(state.timeline.n_cached() - *n_drafted);
        }
        if !hidden.is_empty() {
            let rows = &hidden[part.rows.start * width..part.rows.end * width];
            state.speculation.record_hidden(part.position, rows);
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
