//! Why rows of embeddings and positions cannot be evaluated.

use moeflux_backend::RowPosition;
use moeflux_core::OptionId;

/// The greatest position: `f32`, which rotations are computed in, has every whole number up to here.
pub(crate) const MAX_POSITION: u32 = 1 << 24;

/// Why a row cannot be evaluated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RowError {
    /// An embedding is not one of this model.
    #[error("row {row}: an embedding of {len} floats; this model's have {hidden}")]
    EmbeddingLength {
        /// The row, counted from the first of the call.
        row: usize,
        /// Floats of the embedding, or of what a layer adds to it.
        len: usize,
        /// `hidden_size`.
        hidden: usize,
    },
    /// An embedding is damaged.
    #[error("row {row}: element {element} of the embedding is {value}; it must be a finite number")]
    NotFinite {
        /// The row.
        row: usize,
        /// The element, counted over the embedding and what layers add to it.
        element: usize,
        /// NaN or an infinity.
        value: f32,
    },
    /// There are fewer layers than additions.
    #[error("row {row}: additions for {given} layers; this model has {n_layers}")]
    TooManyLayers {
        /// The row.
        row: usize,
        /// Additions.
        given: usize,
        /// Layers.
        n_layers: usize,
    },
    /// Rows of a picture see each other, and a step cannot have all of them.
    #[error(
        "row {row}: a picture of {n} rows; a step of this model must have all rows of a picture, and has \
         {most}: choose a larger {}, or a smaller {}",
        OptionId::Chunk,
        OptionId::ImageTokens
    )]
    PictureTooLong {
        /// The first row of the picture.
        row: usize,
        /// Rows of the picture, those from one token to the next.
        n: usize,
        /// Rows of a step.
        most: usize,
    },
    /// Rows of a picture see each other, and others are in their chunk.
    #[error(
        "row {row}: a chunk of this model has either tokens or all rows of one picture, and nothing else"
    )]
    PictureNotAlone {
        /// The first row that is unlike the one before.
        row: usize,
    },
    /// The model's positions have one part.
    #[error(
        "row {row}: a position of {temporal}, {height}, {width}; positions of this model have one part \
         (RowPosition::text)", temporal = position.temporal, height = position.height,
        width = position.width
    )]
    PositionParts {
        /// The row.
        row: usize,
        /// Its position.
        position: RowPosition,
    },
    /// `f32` has no whole number for a position.
    #[error("row {row}: position {position} is above {MAX_POSITION}")]
    PositionTooLarge {
        /// The row.
        row: usize,
        /// The position.
        position: u32,
    },
    /// A picture was evaluated, is to be evaluated again, and is in memory no more.
    #[error(
        "the picture at position {position} is no longer in memory: give the prompt again with it"
    )]
    PictureForgotten {
        /// The position of its first row.
        position: usize,
    },
    /// A prompt has another number of pictures than were seen for it.
    #[error("the prompt has places for {n_placed} pictures, and {n_seen} were given")]
    PictureCount {
        /// Pictures that the prompt has places for.
        n_placed: usize,
        /// Pictures that were given.
        n_seen: usize,
    },
    /// A picture does not stand where it is said to.
    #[error(
        "the tokens from position {position} on are not the {n_rows} rows of the picture there"
    )]
    PictureMisplaced {
        /// The position of its first row.
        position: usize,
        /// Its rows.
        n_rows: usize,
    },
    /// A picture was seen by another model's tower.
    #[error(
        "the picture at position {position} has rows of {given} floats; this model's have {hidden}"
    )]
    PictureWidth {
        /// The position of its first row.
        position: usize,
        /// Floats of a row.
        given: usize,
        /// `hidden_size`.
        hidden: usize,
    },
    /// A session cannot be written.
    #[error(
        "a session with embeddings, or with positions other than its tokens' own, cannot be saved: \
         evaluate its rows again"
    )]
    CannotBeSaved,
}
