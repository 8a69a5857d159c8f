//! Scales and biases of a panel of the matrix.

use std::ops::Range;

use super::params::{GROUPS, param_tile};
use super::vector::{ROWS, store_floats};
use crate::cpu::matmul::product::IntegerProduct;
use crate::cpu::vector::Line;

/// As `f32`, with sixteen rows as lanes.
#[derive(Debug, Default)]
pub(in crate::cpu::matmul) struct Params {
    n_groups: usize,
    /// (row tiles, groups)
    scales: Vec<Line>,
    biases: Vec<Line>,
}

impl Params {
    #[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
    fn fill(&mut self, product: &IntegerProduct<'_>, rows: Range<usize>) {
        self.resize(rows.len().div_ceil(ROWS), product.n_groups());
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

    /// Makes room for tiles of so many groups.
    pub(super) fn resize(&mut self, n_tiles: usize, n_groups: usize) {
        self.n_groups = n_groups;
        let n = n_tiles * n_groups;
        if self.scales.len() < n {
            self.scales.resize(n, Line::ZERO);
            self.biases.resize(n, Line::ZERO);
        }
    }

    /// The scale and the bias of a group of a tile of rows.
    pub(super) fn group_mut(&mut self, tile: usize, group: usize) -> [&mut Line; 2] {
        let at = tile * self.n_groups + group;
        [&mut self.scales[at], &mut self.biases[at]]
    }

    /// Those of `rows`: the product's own where it has them, filled in here otherwise.
    #[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
    pub(in crate::cpu::matmul) fn of_rows<'a>(
        &'a mut self,
        product: &IntegerProduct<'a>,
        rows: Range<usize>,
    ) -> TileParams<'a> {
        if let Some(params) = product.params {
            return TileParams { params, first: rows.start / ROWS };
        }
        self.fill(product, rows);
        TileParams { params: self, first: 0 }
    }
}

/// Those of some tiles of rows.
#[derive(Clone, Copy)]
pub(in crate::cpu::matmul) struct TileParams<'a> {
    params: &'a Params,
    /// The first tile.
    first: usize,
}

impl<'a> TileParams<'a> {
    /// The scales of a tile of rows, by groups.
    pub(in crate::cpu::matmul) fn scales(self, tile: usize) -> &'a [Line] {
        let Params { n_groups, ref scales, .. } = *self.params;
        &scales[(self.first + tile) * n_groups..][..n_groups]
    }

    /// The biases of a tile of rows, by groups.
    pub(in crate::cpu::matmul) fn biases(self, tile: usize) -> &'a [Line] {
        let Params { n_groups, ref biases, .. } = *self.params;
        &biases[(self.first + tile) * n_groups..][..n_groups]
    }
}
