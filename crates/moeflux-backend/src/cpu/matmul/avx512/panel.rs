//! Scales and biases of a panel of the matrix.

use std::ops::Range;

use super::params::{GROUPS, param_tile};
use super::vector::{ROWS, store_floats};
use crate::cpu::matmul::product::IntegerProduct;
use crate::cpu::vector::Line;

/// As `f32`, with sixteen rows as lanes.
#[derive(Default)]
pub(in crate::cpu::matmul) struct Params {
    n_groups: usize,
    /// (row tiles, groups)
    scales: Vec<Line>,
    biases: Vec<Line>,
}

impl Params {
    #[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
    pub(in crate::cpu::matmul) fn fill(
        &mut self,
        product: &IntegerProduct<'_>,
        rows: Range<usize>,
    ) {
        self.n_groups = product.n_groups();
        let n = rows.len().div_ceil(ROWS) * self.n_groups;
        if self.scales.len() < n {
            self.scales.resize(n, Line::ZERO);
            self.biases.resize(n, Line::ZERO);
        }
        for (tile, row) in rows.clone().step_by(ROWS).enumerate() {
            let rows = row..rows.end.min(row + ROWS);
            for group in (0..self.n_groups).step_by(GROUPS) {
                let params = param_tile(product, rows.clone(), group);
                let n = GROUPS.min(self.n_groups - group);
                let at = tile * self.n_groups + group;
                for (out, it) in self.scales[at..at + n].iter_mut().zip(params.scale) {
                    store_floats(&mut out.0, it);
                }
                for (out, it) in self.biases[at..at + n].iter_mut().zip(params.bias) {
                    store_floats(&mut out.0, it);
                }
            }
        }
    }

    /// The scales of a tile of rows, by groups.
    pub(in crate::cpu::matmul) fn scales(&self, tile: usize) -> &[Line] {
        &self.scales[tile * self.n_groups..][..self.n_groups]
    }

    /// The biases of a tile of rows, by groups.
    pub(in crate::cpu::matmul) fn biases(&self, tile: usize) -> &[Line] {
        &self.biases[tile * self.n_groups..][..self.n_groups]
    }
}
