//! Checks of rows before a step takes them.

use moeflux_core::TokenId;

use super::state::SessionState;
use crate::engine::Engine;
use crate::error::{EngineError, RowError};
use crate::positions::input::ChunkInput;
use crate::positions::pictures::{Pictures, PromptPicture};

/// Checks that the context has room for a prompt, that its pictures stand where it says, and that the
/// vocabulary has all other tokens.
pub(crate) fn check_prompt(
    engine: &Engine,
    tokens: &[TokenId],
    pictures: &[PromptPicture],
) -> Result<(), EngineError> {
    let mut end = 0;
    for picture in pictures {
        check_picture(engine, tokens, picture)?;
        let (position, n_rows) = (picture.start, picture.seen.rows().n_rows);
        if position < end {
            return Err(RowError::PictureMisplaced { position, n_rows }.into());
        }
        end = position + n_rows;
    }
    check_tokens(engine, &Pictures::of(pictures, engine.shape()), tokens, 0)
}

fn check_picture(
    engine: &Engine,
    tokens: &[TokenId],
    picture: &PromptPicture,
) -> Result<(), EngineError> {
    let PromptPicture { start: position, placeholder, seen } = picture;
    let (shape, position, rows) = (engine.shape(), *position, seen.rows());
    let (n_rows, given, hidden) = (rows.n_rows, seen.hidden(), shape.hidden);
    let stand = tokens.get(position..).and_then(|tokens| tokens.get(..n_rows));
    if n_rows == 0 || !stand.is_some_and(|stand| rows.tokens().eq(stand.iter().copied())) {
        return Err(RowError::PictureMisplaced { position, n_rows }.into());
    }
    if given != hidden || seen.n_deepstack() > shape.n_layers {
        return Err(RowError::PictureWidth { position, given, hidden }.into());
    }
    let most = engine.plan().chunk;
    if shape.sees_pictures_whole && n_rows > most {
        return Err(RowError::PictureTooLong { row: position, n: n_rows, most }.into());
    }
    let vocab = shape.vocab;
    if placeholder.0 as usize >= vocab {
        return Err(EngineError::TokenOutOfRange { token: *placeholder, vocab });
    }
    Ok(())
}

/// Checks that the context has room for tokens from position `start` on and that the vocabulary has
/// those that are not rows of pictures.
pub(crate) fn check_tokens(
    engine: &Engine,
    pictures: &Pictures,
    tokens: &[TokenId],
    start: usize,
) -> Result<(), EngineError> {
    let vocab = engine.shape().vocab;
    check_room(engine, tokens.len(), start)?;
    let mut wrong = (start..).zip(tokens).filter(|(_, token)| token.0 as usize >= vocab);
    match wrong.find(|(position, token)| !pictures.has(**token, *position)) {
        Some((_, token)) => Err(EngineError::TokenOutOfRange { token: *token, vocab }),
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
        ChunkInput::Tokens(tokens) => {
            return check_tokens(engine, state.timeline.pictures(), tokens, start);
        }
        ChunkInput::Rows(rows) => rows,
    };
    check_room(engine, rows.len(), start)?;
    let shape = engine.shape();
    rows.iter().enumerate().try_for_each(|(nth, row)| row.check(nth, shape))
}

/// Checks that a chunk has tokens or one picture, where a step must have all rows of that.
pub(super) fn check_alone(engine: &Engine, input: ChunkInput<'_>) -> Result<(), EngineError> {
    let ChunkInput::Rows(rows) = input else { return Ok(()) };
    let mut pairs = rows.windows(2);
    let change = pairs.position(|pair| pair[0].is_embedding() != pair[1].is_embedding());
    match change.filter(|_| engine.shape().sees_pictures_whole) {
        Some(before) => Err(RowError::PictureNotAlone { row: before + 1 }.into()),
        None => Ok(()),
    }
}
