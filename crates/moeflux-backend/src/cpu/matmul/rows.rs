//! Rows of activations and of outputs.

use std::ops::Range;

use crate::cpu::pool::SharedMut;

/// Rows of `f32` at a fixed distance: row `i` is `data[i * stride..][..cols]`.
#[derive(Clone, Copy, Debug)]
pub struct FloatRows<'a> {
    /// All rows.
    pub data: &'a [f32],
    /// Elements from one row to the next.
    pub stride: usize,
    /// Elements of a row.
    pub cols: usize,
}

/// Which rows, in which order.
#[derive(Clone, Copy, Debug)]
pub enum RowMap<'a> {
    /// `n` consecutive rows.
    Range {
        /// The first of them.
        first: usize,
        /// How many.
        n: usize,
    },
    /// Any rows.
    List(&'a [u32]),
}

/// Where a job writes: output `r` of its `i`-th row goes to
/// `data[rows.at(i) * stride + first_col + r]`.
#[derive(Clone, Copy, Debug)]
pub struct OutRows<'a> {
    /// The buffer, which other jobs of the same call may share.
    pub data: SharedMut<'a, f32>,
    /// Elements from one row to the next.
    pub stride: usize,
    /// Where in a row the outputs begin.
    pub first_col: usize,
    /// Which rows.
    pub rows: RowMap<'a>,
}

impl RowMap<'_> {
    /// How many rows.
    pub fn len(&self) -> usize {
        match self {
            RowMap::Range { n, .. } => *n,
            RowMap::List(rows) => rows.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The `i`-th of them.
    pub fn at(&self, i: usize) -> usize {
        match self {
            RowMap::Range { first, n } => {
                debug_assert!(i < *n, "row {i} of {n}");
                first + i
            }
            RowMap::List(rows) => rows[i] as usize,
        }
    }

    pub(super) fn max(&self) -> Option<usize> {
        match self {
            RowMap::Range { first, n } => n.checked_sub(1).map(|n| first + n),
            RowMap::List(rows) => rows.iter().max().map(|row| *row as usize),
        }
    }
}

impl<'a> FloatRows<'a> {
    /// One row.
    pub fn row(&self, idx: usize) -> &'a [f32] {
        &self.data[idx * self.stride..][..self.cols]
    }
}

impl OutRows<'_> {
    /// Where the outputs of the `i`-th row begin.
    pub(super) fn start(&self, i: usize) -> usize {
        self.rows.at(i) * self.stride + self.first_col
    }
}

/// The outputs that belong to one task: some rows of the matrix, all rows of
/// the activations.
pub(super) struct OutPart<'a> {
    out: OutRows<'a>,
    rows: Range<usize>,
    /// What outputs are multiplied by: the scale that all of the matrix shares.
    factor: f32,
}

impl<'a> OutPart<'a> {
    /// # Safety
    /// While the result lives, nothing else uses these outputs.
    pub(super) unsafe fn new(out: OutRows<'a>, rows: Range<usize>, factor: f32) -> OutPart<'a> {
        OutPart { out, rows, factor }
    }

    /// The outputs of some of these rows, as those of a matrix that begins with the first of them.
    pub(super) fn part(&mut self, rows: Range<usize>) -> OutPart<'_> {
        assert!(self.rows.start <= rows.start && rows.end <= self.rows.end, "rows of another task");
        let first_col = self.out.first_col + rows.start;
        let out = OutRows { first_col, ..self.out };
        OutPart { out, rows: 0..rows.len(), factor: self.factor }
    }

    /// Asks memory for the outputs of some matrix rows for the `i`-th row of
    /// the activations, which will be written soon: stores wait in order.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub(super) fn prefetch(&self, i: usize, rows: Range<usize>) {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        let address = self.out.data.address() + (self.out.start(i) + rows.start) * size_of::<f32>();
        for line in (0..rows.len() * size_of::<f32>()).step_by(64) {
            // SAFETY: a prefetch reads nothing and needs no valid address.
            unsafe { _mm_prefetch::<_MM_HINT_ET0>(std::ptr::without_provenance(address + line)) };
        }
    }

    /// What outputs are multiplied by before they are written to [`row`](OutPart::row).
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub(super) fn factor(&self) -> f32 {
        self.factor
    }

    /// The outputs of some matrix rows for the `i`-th row of the activations.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub(super) fn row(&mut self, i: usize, rows: Range<usize>) -> &mut [f32] {
        assert!(self.rows.start <= rows.start && rows.end <= self.rows.end, "rows of another task");
        let start = self.out.start(i);
        // SAFETY: by the contract of `new` this is the only user of these rows' outputs, and the
        // slice borrows it.
        unsafe { self.out.data.slice(start + rows.start..start + rows.end) }
    }

    /// Writes the outputs of matrix rows `row..` for the `i`-th row of the
    /// activations, times what all of them are multiplied by.
    #[inline]
    pub(super) fn put(&mut self, i: usize, row: usize, values: &[f32]) {
        let end = row + values.len();
        assert!(self.rows.start <= row && end <= self.rows.end, "rows of another task");
        let start = self.out.start(i);
        // SAFETY: by the contract of `new` this is the only user of these rows' outputs, and the
        // slice ends with this function.
        let out = unsafe { self.out.data.slice(start + row..start + end) };
        // A length known here is a move, another one a call.
        if let (Some(out), Some(values)) = (out.as_mut_array::<16>(), values.as_array::<16>()) {
            *out = *values;
        } else if let (Some(out), Some(values)) = (out.as_mut_array::<8>(), values.as_array::<8>())
        {
            *out = *values;
        } else {
            out.copy_from_slice(values);
        }
        if self.factor != 1.0 {
            out.iter_mut().for_each(|value| *value *= self.factor);
        }
    }
}
