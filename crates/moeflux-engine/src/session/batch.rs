//! Several sessions in one step: an expert that more than one of them needs is
//! read once, and multiplies the rows of all.

use moeflux_backend::Span;
use moeflux_core::TokenId;

use super::Session;
use super::eval::{LOGIT_ROWS, Logits, Next, next_of};
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
    let logits = |it| match it {
        Next::Logits(logits) => logits,
        Next::Leaders(_) => unreachable!("all logits are wanted"),
    };
    let next = eval_next_together(parts, None)?;
    Ok(next.into_iter().map(|it| it.map(logits)).collect())
}

/// The same for those who want nothing but so many of the likeliest tokens to follow, or
/// with `None` all.
pub(crate) fn eval_next_together(
    parts: &mut [Part<'_>],
    n_leaders: Option<usize>,
) -> Result<Vec<Option<Next>>, EngineError> {
    let Some(first) = parts.first() else { return Ok(Vec::new()) };
    let engine = first.session.engine.clone();
    let n_rows: usize = parts.iter().map(|it| it.tokens.len()).sum();
    assert!(n_rows <= engine.plan().chunk, "{n_rows} rows are more than a step has");
    for part in &*parts {
        assert!(part.session.engine.is(&engine), "sessions of one step share their engine");
        part.session.check(part.tokens, part.session.position())?;
    }
    let core = &mut *engine.core();
    let mut spans = Vec::with_capacity(parts.len());
    let mut tokens = Vec::with_capacity(n_rows);
    for part in &mut *parts {
        part.session.replay(core)?;
        let rows = tokens.len()..tokens.len() + part.tokens.len();
        let Session { sequence, n_cached, .. } = *part.session;
        spans.push(Span { sequence, rows, position: n_cached });
        tokens.extend_from_slice(part.tokens);
    }
    let stepped = core.step_spans(&spans, &tokens);
    if stepped.is_ok() {
        for part in &mut *parts {
            part.session.n_cached += part.tokens.len();
            part.session.tokens.extend_from_slice(part.tokens);
        }
    }
    let outcome = stepped.and_then(|()| conclude(core, parts, &spans, n_leaders));
    if outcome.is_err() {
        for (part, span) in parts.iter_mut().zip(&spans) {
            part.session.undo(core, span.position);
        }
    }
    outcome
}

/// What may come next behind a step, for those who want it, and the checkpoints that
/// are due.
fn conclude(
    core: &mut Core,
    parts: &mut [Part<'_>],
    spans: &[Span],
    n_leaders: Option<usize>,
) -> Result<Vec<Option<Next>>, EngineError> {
    let wanted = parts.iter().zip(spans).filter(|(part, _)| part.wants_logits);
    let rows: Vec<usize> = wanted.map(|(_, span)| span.rows.end - 1).collect();
    let mut next = Vec::with_capacity(rows.len());
    for rows in rows.chunks(LOGIT_ROWS) {
        next.extend(next_of(core, rows, n_leaders)?);
    }
    let mut next = next.into_iter();
    let mut results = Vec::with_capacity(parts.len());
    for part in parts {
        part.session.keep_states(core, part.is_mark)?;
        results.push(if part.wants_logits { next.next() } else { None });
    }
    Ok(results)
}
