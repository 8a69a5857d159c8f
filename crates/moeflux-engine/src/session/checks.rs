//! Checks of rows before a step takes them.

use moeflux_core::TokenId;

use super::state::SessionState;
use crate::engine::Engine;
use crate::error::{EngineError, RowError};
use crate::positions::input::ChunkInput;

/// Checks that the context has room for tokens from position `start` on and that the
/// vocabulary has them.
pub(crate) fn check_tokens(
    engine: &Engine,
    tokens: &[TokenId],
    start: usize,
) -> Result<(), EngineError> {
    let vocab = engine.shape().vocab;
    check_room(engine, tokens.len(), start)?;
    match tokens.iter().find(|token| token.0 as usize >= vocab) {
        Some(token) => Err(EngineError::TokenOutOfRange { token: *token, vocab }),
        None => Ok(()),
    }
}

/// Checks that the context has room for `n` rows from position `start` on, at least one.
fn check_room(engine: &Engine, n: usize, start: usize) -> Result<(), EngineError> {
    if n == 0 {
        return Err(EngineError::EmptyPrompt);
    }
    let (wanted, limit) = (start + n, engine.plan().ctx);
    if wanted > limit { Err(EngineError::ContextFull { wanted, limit }) } else { Ok(()) }
}

/// Checks that a session has room for rows that continue it and that the model takes them.
pub(super) fn check_input(
    engine: &Engine,
    state: &SessionState,
    input: ChunkInput<'_>,
) -> Result<(), EngineError> {
    let start = state.position();
    let rows = match input {
        ChunkInput::Tokens(tokens) => return check_tokens(engine, tokens, start),
        ChunkInput::Rows(rows) => rows,
    };
    check_room(engine, rows.len(), start)?;
    let shape = engine.shape();
    rows.iter().enumerate().try_for_each(|(nth, row)| row.check(nth, shape))?;
    if shape.takes_embeddings {
        return Ok(());
    }
    let placed = state.timeline.place(rows);
    let other = (start..).zip(&placed).position(|(at, row)| !row.is_plain(at));
    other.map_or(Ok(()), |row| Err(RowError::TokensOnly { row }.into()))
}
