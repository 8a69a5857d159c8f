//! Where patches are: their order, and the learned vectors of their places.

use crate::load::{LoadError, Weights};

/// Rows and columns of a picture's patches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub columns: usize,
}

impl Grid {
    /// Patches.
    pub fn len(self) -> usize {
        self.rows * self.columns
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

/// The order of patches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Row by row.
    Rows,
    /// In squares of `merge` times `merge`, row by row of squares, and of each square.
    Squares {
        /// Patches of a side.
        merge: usize,
    },
}

impl Order {
    /// Row and column of the `nth` patch.
    pub(super) fn place(self, grid: Grid, nth: usize) -> [usize; 2] {
        match self {
            Order::Rows => [nth / grid.columns, nth % grid.columns],
            Order::Squares { merge } => {
                let (square, within) = (nth / (merge * merge), nth % (merge * merge));
                let per_row = grid.columns / merge;
                let first = [square / per_row * merge, square % per_row * merge];
                [first[0] + within / merge, first[1] + within % merge]
            }
        }
    }

    /// The number of the patch at a row and a column.
    pub(super) fn number(self, grid: Grid, [row, column]: [usize; 2]) -> usize {
        match self {
            Order::Rows => row * grid.columns + column,
            Order::Squares { merge } => {
                let square = row / merge * (grid.columns / merge) + column / merge;
                square * merge * merge + row % merge * merge + column % merge
            }
        }
    }
}

/// How a table of places serves grids of other sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resampling {
    /// Between two entries; those at the corners are the corners of the grid.
    Bilinear,
    /// Among four entries, by Keys' cubic with `a = -0.75`; centres of entries are half a step inside.
    Bicubic,
    /// Not at all: an entry for each column, then one for each row, which are added.
    PerAxis,
}

/// A table of learned vectors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TablePlan {
    pub(crate) name: &'static str,
    /// Entries of a side, rows first. With [`Resampling::PerAxis`] entries of both axes are alike.
    pub(crate) sides: [usize; 2],
    pub(crate) resampling: Resampling,
}

/// A table on the host.
#[derive(Debug)]
pub(super) struct Table {
    plan: TablePlan,
    width: usize,
    values: Vec<f32>,
}

/// An entry of an axis, and its share.
type Tap = (usize, f32);

impl Table {
    pub(super) fn load(
        plan: TablePlan,
        width: usize,
        weights: &mut dyn Weights,
    ) -> Result<Table, LoadError> {
        let [rows, columns] = plan.sides;
        let shapes = match plan.resampling {
            Resampling::PerAxis => vec![vec![2, rows, width]],
            _ => vec![vec![rows * columns, width], vec![rows, columns, width]],
        };
        let values = weights.vector(plan.name, &shapes)?.values;
        Ok(Table { plan, width, values })
    }

    /// Whether a grid has no more rows and columns than there are entries, where that matters.
    pub(super) fn fits(&self, grid: Grid) -> bool {
        self.plan.resampling != Resampling::PerAxis
            || grid.rows.max(grid.columns) <= self.plan.sides[0]
    }

    /// The table as it serves a grid.
    pub(super) fn on(&self, grid: Grid) -> TableOnGrid<'_> {
        let [rows, columns] = self.plan.sides;
        let taps = |n: usize, side| (0..n).map(|i| self.taps(i, n, side)).collect();
        TableOnGrid {
            table: self,
            of_rows: taps(grid.rows, rows),
            of_columns: taps(grid.columns, columns),
        }
    }

    fn add(&self, out: &mut [f32], entry: usize, share: f32) {
        let values = &self.values[entry * self.width..][..self.width];
        for (out, value) in out.iter_mut().zip(values) {
            *out += share * value;
        }
    }

    /// The entries of an axis of `side` that the `i`th of `n` places is made of.
    fn taps(&self, i: usize, n: usize, side: usize) -> Vec<Tap> {
        let last = side - 1;
        match self.plan.resampling {
            Resampling::PerAxis => Vec::new(),
            Resampling::Bilinear => {
                let at = i as f64 * last as f64 / (n - 1).max(1) as f64;
                let low = (at.floor() as usize).min(last);
                let share = (at - low as f64) as f32;
                vec![(low, 1.0 - share), ((low + 1).min(last), share)]
            }
            Resampling::Bicubic => {
                let at = (i as f64 + 0.5) * side as f64 / n as f64 - 0.5;
                let low = at.floor();
                let tap = |step: i32| {
                    let entry = low + f64::from(step);
                    let share = cubic(at - entry) as f32;
                    (entry.clamp(0.0, last as f64) as usize, share)
                };
                (-1..=2).map(tap).collect()
            }
        }
    }
}

/// A table, and the entries that each row and each column of a grid is made of.
#[derive(Debug)]
pub(super) struct TableOnGrid<'a> {
    table: &'a Table,
    of_rows: Vec<Vec<Tap>>,
    of_columns: Vec<Vec<Tap>>,
}

impl TableOnGrid<'_> {
    /// Writes the vector of the patch at a row and a column.
    pub(super) fn write(&self, [row, column]: [usize; 2], out: &mut [f32]) {
        let TableOnGrid { table, of_rows, of_columns } = self;
        let [rows, columns] = table.plan.sides;
        out.fill(0.0);
        if table.plan.resampling == Resampling::PerAxis {
            table.add(out, column, 1.0);
            table.add(out, rows + row, 1.0);
            return;
        }
        for (r, of_row) in &of_rows[row] {
            for (c, of_column) in &of_columns[column] {
                table.add(out, r * columns + c, of_row * of_column);
            }
        }
    }
}

/// Keys, 1981, "Cubic convolution interpolation", with `a = -0.75` as PyTorch has it.
fn cubic(x: f64) -> f64 {
    const A: f64 = -0.75;
    let x = x.abs();
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * A
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squares_come_row_by_row() {
        let (grid, order) = (Grid { rows: 4, columns: 6 }, Order::Squares { merge: 2 });
        let places: Vec<[usize; 2]> = (0..8).map(|nth| order.place(grid, nth)).collect();
        assert_eq!(places[..4], [[0, 0], [0, 1], [1, 0], [1, 1]]);
        assert_eq!(places[4..], [[0, 2], [0, 3], [1, 2], [1, 3]]);
        for order in [order, Order::Rows] {
            assert!((0..24).all(|nth| order.number(grid, order.place(grid, nth)) == nth));
        }
    }
}
