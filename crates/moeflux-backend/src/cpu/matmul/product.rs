//! A matrix and activations as kernels take them.

use std::ops::Range;

use moeflux_core::quant::MatrixView;

use super::block_format::BlockFormat;
use super::integers::Integers;
use super::prepacked;
use super::quantised::Quantised;
use super::rows::{FloatRows, RowMap};

#[cfg(target_arch = "x86_64")]
use super::lane_params::LaneParams;
#[cfg(target_arch = "x86_64")]
use crate::cpu::prefetcher::Prefetcher;

/// A matrix of integers and rounded activations, as integer kernels take them.
#[derive(Clone, Copy)]
pub(super) struct IntegerProduct<'a> {
    pub(super) weight: MatrixView<'a>,
    pub(super) integers: Integers,
    pub(super) x: &'a Quantised,
    pub(super) x_rows: RowMap<'a>,
    /// The activations as tiles, where rows are many enough.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "always absent"))]
    pub(super) prepacked: Option<prepacked::Input<'a>>,
    /// The matrix that is likely to be wanted next, and from which row on.
    pub(super) next: Option<(MatrixView<'a>, usize)>,
    /// Where the matrix is a decoded panel: the stored one that the next panel is decoded from, and
    /// from which row on.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        expect(dead_code, reason = "only kernels of x86-64 prefetch")
    )]
    pub(super) next_panel: Option<(MatrixView<'a>, usize)>,
    /// Scales and biases of the whole matrix, where they are at hand with rows as lanes. Those in
    /// `weight` are absent then.
    #[cfg(target_arch = "x86_64")]
    pub(super) params: Option<&'a LaneParams>,
}

/// Any matrix and `f32` activations, as the full-precision kernels take them.
#[derive(Clone, Copy)]
pub(super) struct FullProduct<'a> {
    pub(super) weight: MatrixView<'a>,
    pub(super) x: FloatRows<'a>,
    pub(super) x_rows: RowMap<'a>,
}

impl<'a> IntegerProduct<'a> {
    pub(super) fn n_groups(&self) -> usize {
        self.integers.n_groups(self.weight.cols)
    }

    /// Bytes of a row of the matrix among the stored codes.
    pub(super) fn row_bytes(&self) -> usize {
        self.integers.row_bytes(self.weight.cols)
    }

    /// The integers of some rows of the matrix.
    pub(super) fn weight_rows(&self, rows: Range<usize>) -> &'a [u8] {
        let row_bytes = self.row_bytes();
        &self.weight.weight[rows.start * row_bytes..rows.end * row_bytes]
    }

    /// Prefetches what is read after `rows` of the matrix, as many rows as a panel has:
    /// those that follow or, after a task's last ones, those that the thread's next task
    /// begins with. While a decoded panel is multiplied, those that take its place.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn prefetcher(
        &self,
        rows: &Range<usize>,
        panel_rows: usize,
        is_last: bool,
    ) -> Prefetcher<'a> {
        let next = match self.next_panel {
            Some((weight, first)) => Some((weight, first + rows.start)),
            None if is_last => self.next,
            None => Some((self.weight, rows.end)),
        };
        let (weight, first) = next.unwrap_or((self.weight, self.weight.rows));
        let next = first.min(weight.rows)..(first + panel_rows).min(weight.rows);
        Prefetcher::new([weight.weight, weight.scales, weight.biases].map(|all| {
            let row_bytes = all.len() / weight.rows.max(1);
            &all[next.start * row_bytes..next.end * row_bytes]
        }))
    }
}
