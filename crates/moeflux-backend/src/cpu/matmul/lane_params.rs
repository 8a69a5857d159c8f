//! Scales and biases of a panel of a matrix, with sixteen rows as lanes.

use crate::cpu::vector::Line;

/// As `f32`.
#[derive(Debug, Default)]
pub(super) struct LaneParams {
    n_groups: usize,
    /// (row tiles, groups)
    scales: Vec<Line>,
    biases: Vec<Line>,
}

/// Those of some tiles of rows.
#[derive(Clone, Copy)]
pub(super) struct TileParams<'a> {
    params: &'a LaneParams,
    /// The first tile.
    first: usize,
}

impl LaneParams {
    /// Makes room for `n_tiles` tiles of `n_groups` groups.
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

    /// Those of all tiles from `first` on.
    pub(super) fn tiles(&self, first: usize) -> TileParams<'_> {
        TileParams { params: self, first }
    }
}

impl<'a> TileParams<'a> {
    /// The scales of a tile of rows, by groups.
    pub(super) fn scales(self, tile: usize) -> &'a [Line] {
        let LaneParams { n_groups, ref scales, .. } = *self.params;
        &scales[(self.first + tile) * n_groups..][..n_groups]
    }

    /// The biases of a tile of rows, by groups.
    pub(super) fn biases(self, tile: usize) -> &'a [Line] {
        let LaneParams { n_groups, ref biases, .. } = *self.params;
        &biases[(self.first + tile) * n_groups..][..n_groups]
    }
}
