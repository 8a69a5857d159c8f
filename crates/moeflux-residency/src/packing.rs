//! Where the matrices of an expert are in a slot, and the pieces in which threads write them.

use std::ops::Range;
use std::sync::Arc;

use moeflux_core::{ExpertLayout, MatrixLayout};

/// Bytes of the smallest slot: devices bind no less.
const MIN_BYTES: usize = 16;

/// What a matrix of an expert takes in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixBytes {
    /// All bytes, padding included.
    pub len: usize,
    /// The byte of the matrix at which its scales begin.
    pub scales_at: usize,
    /// How many of the first bytes are those of the expert's record, unchanged.
    pub as_stored: usize,
}

/// A matrix of an expert in its slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatrixPart {
    /// Its bytes, counted from the first byte of the slot.
    pub bytes: Range<usize>,
    /// The byte of the matrix at which its scales begin.
    pub scales_at: usize,
    /// How many of the first bytes are those of the expert's record, unchanged.
    pub as_stored: usize,
}

/// Bytes of a matrix that one thread writes without interruption.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Index of the matrix in the expert's layout.
    pub matrix: usize,
    /// The bytes, counted from the first byte of the matrix.
    pub bytes: Range<usize>,
}

/// How the experts of one layout are stored in slots.
#[derive(Debug)]
pub struct Packing {
    layout: Arc<ExpertLayout>,
    bytes: usize,
    parts: Vec<MatrixPart>,
    piece_bytes: usize,
}

impl Packing {
    /// Matrices of a layout one after the other. `measure` returns what one of them takes on the
    /// device; threads write pieces of at most `piece_bytes`.
    pub fn new(
        layout: &Arc<ExpertLayout>,
        piece_bytes: usize,
        measure: impl Fn(&MatrixLayout) -> MatrixBytes,
    ) -> Packing {
        let mut parts = Vec::new();
        let mut end = 0;
        for matrix in layout.matrices() {
            let MatrixBytes { len, scales_at, as_stored } = measure(matrix);
            parts.push(MatrixPart { bytes: end..end + len, scales_at, as_stored });
            end += len;
        }
        Packing { layout: Arc::clone(layout), bytes: end.max(MIN_BYTES), parts, piece_bytes }
    }

    /// The layout of the experts' records.
    pub fn layout(&self) -> &Arc<ExpertLayout> {
        &self.layout
    }

    /// Bytes of a slot.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The matrices in a slot: gate and up (or the one that has both), then down.
    pub fn parts(&self) -> &[MatrixPart] {
        &self.parts
    }

    /// Each matrix with its place in a slot.
    pub fn matrices(&self) -> impl Iterator<Item = (&MatrixLayout, &MatrixPart)> {
        self.layout.matrices().zip(&self.parts)
    }

    /// The layout of a matrix by its index, as [`Piece::matrix`] counts.
    ///
    /// # Panics
    /// If experts have fewer matrices.
    pub fn matrix(&self, idx: usize) -> &MatrixLayout {
        self.layout.matrices().nth(idx).expect("experts have such a matrix")
    }

    /// All bytes of an expert, in pieces that threads write at the same time. What is not as in the
    /// record is one piece of each matrix.
    pub fn pieces(&self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for (matrix, MatrixPart { bytes, as_stored, .. }) in self.parts.iter().enumerate() {
            let stored = *as_stored;
            for first in (0..stored).step_by(self.piece_bytes) {
                let end = stored.min(first + self.piece_bytes);
                pieces.push(Piece { matrix, bytes: first..end });
            }
            if stored < bytes.len() {
                pieces.push(Piece { matrix, bytes: stored..bytes.len() });
            }
        }
        pieces
    }
}
