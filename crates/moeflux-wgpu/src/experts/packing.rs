//! How an expert is stored in a slot: as kernels read it.

use std::ops::Range;
use std::sync::Arc;

use moeflux_core::quant::{MatrixFormat, MatrixView};
use moeflux_core::{ExpertLayout, MatrixLayout};

use crate::weights::format::{Decoder, Place, as_stored, place, sizes};
use crate::weights::matrix::Matrix;

/// Bytes that a thread writes at a time, so that all end together.
const PIECE_BYTES: usize = if cfg!(test) { 1 << 10 } else { 128 << 10 };

/// How experts of one layout are stored in slots.
#[derive(Debug)]
pub(crate) struct Packing {
    pub(crate) of: Arc<ExpertLayout>,
    bytes: usize,
    /// The bytes of each matrix, and where in them its scales begin.
    parts: Vec<(Range<usize>, usize)>,
}

/// The shape of a matrix whose bytes are of no interest.
pub(crate) fn empty_view(it: &MatrixLayout) -> MatrixView<'static> {
    let MatrixLayout { rows, cols, format, .. } = *it;
    MatrixView { rows, cols, format, weight: &[], scales: &[], biases: &[] }
}

impl Packing {
    pub(crate) fn new(of: &Arc<ExpertLayout>) -> Packing {
        let mut bytes = 0;
        let parts = of.matrices().map(|it| {
            let (len, scales) = sizes(&empty_view(it));
            let first = bytes;
            bytes += len;
            (first..bytes, scales)
        });
        let parts = parts.collect();
        Packing { of: Arc::clone(of), bytes: bytes.max(16), parts }
    }

    /// Whether resident matrices are stored as those of an expert.
    pub(crate) fn suits(&self, matrices: &[Matrix; 3]) -> bool {
        let is_like = |(matrix, nth): (&Matrix, usize)| {
            let (of, scales) = (self.matrix(nth), self.parts[nth].1);
            let [piece] = &matrix.pieces[..] else { return false };
            (matrix.rows, matrix.cols, matrix.decoder)
                == (of.rows, of.cols, Decoder::new(of.format))
                && piece.place == place(4 * piece.place.elements as usize, scales)
                && piece.phase == 0
                && !matches!(of.format, MatrixFormat::Blocks(it) if it.phase > 0)
        };
        self.parts.len() == matrices.len() && matrices.iter().zip(0..).all(is_like)
    }

    /// Bytes of an expert.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many matrices an expert has.
    pub(crate) fn n_matrices(&self) -> usize {
        self.parts.len()
    }

    /// One of the matrices.
    pub(crate) fn matrix(&self, nth: usize) -> &MatrixLayout {
        self.of.matrices().nth(nth).expect("experts have such a matrix")
    }

    /// Its bytes, and where in them its scales begin.
    pub(crate) fn part(&self, nth: usize) -> (Range<usize>, usize) {
        self.parts[nth].clone()
    }

    /// How many of the first bytes of a matrix are those of the checkpoint.
    pub(crate) fn as_stored(&self, nth: usize) -> usize {
        as_stored(&empty_view(self.matrix(nth)))
    }

    /// Bytes of one of the matrices, in pieces that threads write at the same
    /// time.
    pub(crate) fn pieces(&self, nth: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let stored = self.as_stored(nth);
        let bytes = self.parts[nth].0.len();
        let first =
            (0..stored).step_by(PIECE_BYTES).map(move |at| at..stored.min(at + PIECE_BYTES));
        first.chain((stored < bytes).then_some(stored..bytes))
    }

    /// The places of the matrices of an expert that begins at byte `at`.
    pub(crate) fn places(&self, at: usize) -> [Place; 3] {
        let place_of = |i: usize| {
            let (range, scales) = &self.parts[i.min(self.parts.len() - 1)];
            place(at + range.start, *scales)
        };
        [place_of(0), place_of(1), place_of(2)]
    }
}
