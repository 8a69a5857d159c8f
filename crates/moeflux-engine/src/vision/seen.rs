//! What a tower has made of a picture.

use moeflux_core::PictureRows;
use moeflux_model::Seen;

/// Rows of a prompt that a vision tower has made of a picture.
#[derive(Debug, PartialEq)]
pub struct SeenPicture {
    rows: PictureRows,
    shape: [usize; 2],
    hidden: usize,
    values: Vec<f32>,
    /// By layer of the text.
    deepstack: Vec<Vec<f32>>,
}

impl SeenPicture {
    /// The rows of a picture, `shape` of them by height and width, `hidden` floats each.
    ///
    /// # Panics
    /// Where the numbers do not agree.
    pub fn new(rows: PictureRows, shape: [usize; 2], hidden: usize, seen: Seen) -> SeenPicture {
        let Seen { rows: values, deepstack } = seen;
        assert_eq!(shape[0] * shape[1], rows.n_rows, "a rectangle of rows");
        let all = || [&values].into_iter().chain(&deepstack);
        assert!(all().all(|values| values.len() == rows.n_rows * hidden), "floats of all rows");
        SeenPicture { rows, shape, hidden, values, deepstack }
    }

    /// What stands for the rows in a prompt's tokens.
    pub fn rows(&self) -> PictureRows {
        self.rows
    }

    /// Rows by height and width, which positions of three parts follow.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// Floats of a row.
    pub fn hidden(&self) -> usize {
        self.hidden
    }

    /// The embedding of a row.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.hidden..][..self.hidden]
    }

    /// What is added to a row after each of the first layers of the text.
    pub fn deepstack(&self, row: usize) -> impl Iterator<Item = &[f32]> {
        self.deepstack.iter().map(move |values| &values[row * self.hidden..][..self.hidden])
    }

    /// How many layers add to rows.
    pub fn n_deepstack(&self) -> usize {
        self.deepstack.len()
    }

    /// Bytes of memory.
    pub(super) fn n_bytes(&self) -> usize {
        (1 + self.deepstack.len()) * self.values.len() * size_of::<f32>()
    }
}
