//! What a session's rows are made of: tokens, or embeddings that the caller has computed.

use moeflux_backend::RowPosition;
use moeflux_core::TokenId;
use moeflux_model::ModelShape;

use crate::error::{EngineError, MAX_POSITION, RowError};

/// What stands for an embedding in [`Session::tokens`](crate::Session::tokens). No vocabulary has it.
pub const EMBEDDED: TokenId = TokenId(u32::MAX);

/// A row of a session's input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InputRow<'a> {
    /// What the row is made of.
    pub input: RowInput<'a>,
    /// By which position rotations turn it; where absent, by the one after the greatest so far.
    /// Positions may repeat and go back. What a row attends to follows from the order of rows alone.
    pub position: Option<RowPosition>,
}

/// What a row is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RowInput<'a> {
    /// A token, whose embedding the model has.
    Token(TokenId),
    /// An embedding, such as a vision tower makes.
    Embedding {
        /// `hidden_size` floats.
        values: &'a [f32],
        /// What is added to the row after each of the first layers (DeepStack), `hidden_size` floats
        /// each; empty without.
        deepstack: &'a [&'a [f32]],
        /// What stands for the row in [`Session::tokens`](crate::Session::tokens), and in n-grams where a
        /// model counts these: the id that its processor has for a row of a picture, or [`EMBEDDED`].
        token: TokenId,
    },
}

/// The rows of one session in a batch.
#[derive(Clone, Copy, Debug)]
pub enum ChunkInput<'a> {
    /// Tokens, each one position after the greatest so far.
    Tokens(&'a [TokenId]),
    /// Tokens or embeddings.
    Rows(&'a [InputRow<'a>]),
}

impl<'a> InputRow<'a> {
    /// A token at the position after the greatest so far.
    pub fn token(token: TokenId) -> InputRow<'a> {
        InputRow { input: RowInput::Token(token), position: None }
    }

    /// An embedding at a position, for which [`EMBEDDED`] stands.
    pub fn embedding(values: &'a [f32], position: RowPosition) -> InputRow<'a> {
        let input = RowInput::Embedding { values, deepstack: &[], token: EMBEDDED };
        InputRow { input, position: Some(position) }
    }

    /// The same row at another position.
    #[must_use]
    pub fn at(self, position: RowPosition) -> InputRow<'a> {
        InputRow { position: Some(position), ..self }
    }

    /// What stands for the row in [`Session::tokens`](crate::Session::tokens).
    pub(crate) fn listed(&self) -> TokenId {
        match self.input {
            RowInput::Token(token) | RowInput::Embedding { token, .. } => token,
        }
    }

    /// Whether it is an embedding.
    pub(crate) fn is_embedding(&self) -> bool {
        matches!(self.input, RowInput::Embedding { .. })
    }

    /// Checks that a model takes the `nth` row of a call.
    pub(crate) fn check(&self, nth: usize, shape: &ModelShape) -> Result<(), EngineError> {
        if let Some(position) = self.position {
            let greatest = position.greatest();
            if greatest > MAX_POSITION {
                return Err(RowError::PositionTooLarge { row: nth, position: greatest }.into());
            }
            if !position.is_text() && !shape.has_position_parts {
                return Err(RowError::PositionParts { row: nth, position }.into());
            }
        }
        match self.input {
            RowInput::Token(token) if token.0 as usize >= shape.vocab => {
                Err(EngineError::TokenOutOfRange { token, vocab: shape.vocab })
            }
            RowInput::Token(_) => Ok(()),
            RowInput::Embedding { token, .. }
                if token != EMBEDDED && token.0 as usize >= shape.vocab =>
            {
                Err(EngineError::TokenOutOfRange { token, vocab: shape.vocab })
            }
            RowInput::Embedding { values, deepstack, .. } => {
                Ok(check_embedding(nth, values, deepstack, shape)?)
            }
        }
    }
}

fn check_embedding(
    row: usize,
    values: &[f32],
    deepstack: &[&[f32]],
    shape: &ModelShape,
) -> Result<(), RowError> {
    let (given, n_layers, hidden) = (deepstack.len(), shape.n_layers, shape.hidden);
    if given > n_layers {
        return Err(RowError::TooManyLayers { row, given, n_layers });
    }
    let all = || [values].into_iter().chain(deepstack.iter().copied());
    if let Some(other) = all().find(|values| values.len() != hidden) {
        return Err(RowError::EmbeddingLength { row, len: other.len(), hidden });
    }
    let damaged = all().flatten().enumerate().find(|(_, value)| !value.is_finite());
    match damaged {
        Some((element, value)) => Err(RowError::NotFinite { row, element, value: *value }),
        None => Ok(()),
    }
}

impl<'a> ChunkInput<'a> {
    /// How many rows.
    pub fn len(&self) -> usize {
        match self {
            ChunkInput::Tokens(tokens) => tokens.len(),
            ChunkInput::Rows(rows) => rows.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'a> From<&'a [TokenId]> for ChunkInput<'a> {
    fn from(tokens: &'a [TokenId]) -> ChunkInput<'a> {
        ChunkInput::Tokens(tokens)
    }
}

impl<'a> From<&'a [InputRow<'a>]> for ChunkInput<'a> {
    fn from(rows: &'a [InputRow<'a>]) -> ChunkInput<'a> {
        ChunkInput::Rows(rows)
    }
}
