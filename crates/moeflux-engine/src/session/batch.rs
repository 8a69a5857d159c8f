//! Several sessions in one step: an expert that more than one of them needs is
//! read once, and multiplies the rows of all.

use moeflux_backend::{Span, StateSnapshot};
use moeflux_core::TokenId;

use super::Session;
use super::eval::{LOGIT_ROWS, Logits, Next, next_of};
use crate::draft::limits::MOST_ROWS;
use crate::engine::Core;
use crate::error::EngineError;

/// Tokens that continue one of several sessions.
pub struct Part<'a> {
    /// The session.
    pub session: &'a mut Session,
    /// What follows.
    pub tokens: &'a [TokenId],
    /// Whether what may come next is wanted.
    pub wants_logits: bool,
    /// Whether the session will be gone back to where these tokens end.
    pub is_mark: bool,
}

/// A part whose last tokens are guesses, which [`Session::take_back`] may take back.
pub(crate) struct Guessed<'a> {
    pub(crate) part: Part<'a>,
    /// How many they are; what may follow the token before them and each of them is
    /// wanted too then.
    pub(crate) n_guessed: usize,
}

impl Guessed<'_> {
    /// Its rows if the step takes those that are pending too.
    fn n_rows(&self) -> usize {
        self.part.session.n_pending() + self.part.tokens.len()
    }
}

/// Evaluates tokens of several sessions of one engine in a single step, and
/// gives the logits of those that want any, in their order. The bits are those
/// that each session would give alone.
///
/// # Errors
/// Where tokens are outside the vocabulary or do not fit a session's context, an
/// expert fails, or the device; every session then is as it was.
///
/// # Panics
/// Where there are more tokens than rows in [`Plan::chunk`](crate::Plan), or
/// sessions of different engines.
pub fn eval_together(parts: &mut [Part<'_>]) -> Result<Vec<Option<Logits>>, EngineError> {
    let mut parts: Vec<Guessed<'_>> = parts
        .iter_mut()
        .map(|Part { session, tokens, wants_logits, is_mark }| Guessed {
            part: Part { session, tokens, wants_logits: *wants_logits, is_mark: *is_mark },
            n_guessed: 0,
        })
        .collect();
    let next = eval_next_together(&mut parts, None)?;
    let logits = |it: Next| match it {
        Next::Logits(logits) => logits,
        Next::Leaders(_) => unreachable!("all logits are wanted"),
    };
    Ok(next.into_iter().map(|mut it| it.pop().map(logits)).collect())
}

/// The same for those who want nothing but so many of the likeliest tokens to follow, or
/// with `None` all: behind each token of a guess and the one before it, or the last
/// token; nothing of those who want nothing.
pub(crate) fn eval_next_together(
    parts: &mut [Guessed<'_>],
    n_leaders: Option<usize>,
) -> Result<Vec<Vec<Next>>, EngineError> {
    let Some(first) = parts.first() else { return Ok(Vec::new()) };
    let engine = first.part.session.engine.clone();
    let n_rows: usize = parts.iter().map(|it| it.part.tokens.len()).sum();
    assert!(n_rows <= engine.plan().chunk, "{n_rows} rows are more than a step has");
    for Guessed { part, .. } in &*parts {
        assert!(part.session.engine.is(&engine), "sessions of one step share their engine");
        part.session.check(part.tokens, part.session.position())?;
    }
    let core = &mut *engine.core();
    let most = engine.plan().chunk.min(MOST_ROWS);
    let takes_pending = parts.iter().map(Guessed::n_rows).sum::<usize>() <= most;
    let mut spans = Vec::with_capacity(parts.len());
    let mut tokens = Vec::with_capacity(n_rows);
    for Guessed { part, n_guessed } in &mut *parts {
        if *n_guessed == 0 {
            part.session.forget_mark();
        }
        if !takes_pending {
            part.session.replay(core)?;
        }
        let start = tokens.len();
        tokens.extend_from_slice(part.session.pending());
        tokens.extend_from_slice(part.tokens);
        let Session { sequence, n_cached, .. } = *part.session;
        spans.push(Span { sequence, rows: start..tokens.len(), position: n_cached });
    }
    let guessed = parts.iter().zip(&spans).filter(|it| it.0.n_guessed > 0);
    let keep: Vec<StateSnapshot> = guessed
        .filter_map(|(it, span)| it.part.session.keep(span.rows.len() - it.n_guessed))
        .collect();
    let stepped = core.step_keeping(&spans, &tokens, &keep);
    if stepped.is_ok() {
        for (Guessed { part, n_guessed }, span) in parts.iter_mut().zip(&spans) {
            part.session.n_cached += span.rows.len();
            part.session.tokens.extend_from_slice(part.tokens);
            if *n_guessed > 0 {
                part.session.has_kept(part.session.n_cached - *n_guessed);
            }
        }
    }
    let outcome = stepped.and_then(|()| conclude(core, parts, &spans, n_leaders));
    if outcome.is_err() {
        for (Guessed { part, .. }, span) in parts.iter_mut().zip(&spans) {
            let has_moved = part.session.n_cached > span.position;
            let n_new = if has_moved { part.tokens.len() } else { 0 };
            part.session.undo(core, part.session.position() - n_new, span.position);
        }
    }
    outcome
}

/// Hands what the model made of a step's rows to those who foresee what follows.
fn note_hidden(
    core: &mut Core,
    parts: &mut [Guessed<'_>],
    spans: &[Span],
    n_rows: usize,
) -> Result<(), EngineError> {
    let hidden = core.hidden(n_rows)?;
    let width = hidden.len() / n_rows.max(1);
    for (Guessed { part, .. }, span) in parts.iter_mut().zip(spans) {
        let rows = &hidden[span.rows.start * width..span.rows.end * width];
        part.session.note_hidden(span.position, rows);
    }
    Ok(())
}

/// What may come next behind a step, for those who want it, and the checkpoints that
/// are due.
fn conclude(
    core: &mut Core,
    parts: &mut [Guessed<'_>],
    spans: &[Span],
    n_leaders: Option<usize>,
) -> Result<Vec<Vec<Next>>, EngineError> {
    let n_wanted = |it: &Guessed<'_>| if it.part.wants_logits { 1 + it.n_guessed } else { 0 };
    let rows = |(it, span): (&Guessed<'_>, &Span)| span.rows.end - n_wanted(it)..span.rows.end;
    let rows: Vec<usize> = parts.iter().zip(spans).flat_map(rows).collect();
    let is_followed = parts.iter().any(|it| it.part.session.is_followed());
    let n_rows = spans.last().map_or(0, |it| it.rows.end);
    if is_followed {
        core.will_see(n_rows);
    }
    let mut next = Vec::with_capacity(rows.len());
    for rows in rows.chunks(LOGIT_ROWS) {
        next.extend(next_of(core, rows, n_leaders)?);
    }
    if is_followed {
        note_hidden(core, parts, spans, n_rows)?;
    }
    let mut next = next.into_iter();
    let mut results = Vec::with_capacity(parts.len());
    for it in parts {
        results.push(next.by_ref().take(n_wanted(it)).collect());
        if it.n_guessed == 0 {
            it.part.session.snapshot_states(core, it.part.is_mark)?;
            it.part.session.catch_up_in_time(core);
        }
    }
    Ok(results)
}
