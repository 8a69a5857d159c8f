//! Lists and rounded rows that products keep from call to call.

use super::floats::Floats;
use super::matmul::{MatmulJob, Quantised};
use super::memory::{Activations, Limbs};
use super::pool::SharedMut;
use crate::{Buf, Cols, ExpertCall};

/// Memory of products, kept from call to call.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// `(rows, 2 * intermediate)`: gate, then up.
    pub(super) gate_up: Floats,
    pub(super) activated: Quantised,
    pub(super) lists: Lists,
    pub(super) rows: RowLists,
}

/// What one call writes down; empty between calls.
#[derive(Debug, Default)]
pub(super) struct Lists {
    pub(super) bufs: Vec<Buf>,
    pub(super) taken: Vec<Activations>,
    pub(super) shared: Vec<(usize, SharedMut<'static, f32>)>,
    pub(super) jobs: Vec<MatmulJob<'static>>,
}

/// The rows of the experts that share a fork, call after call.
#[derive(Debug, Default)]
pub(super) struct RowLists {
    /// Rows of the input.
    pub(super) rows: Vec<u32>,
    /// Rows of the output.
    pub(super) slots: Vec<u32>,
    /// Each row's expert.
    pub(super) experts: Vec<usize>,
}

/// Rounded inputs of recent products: layers multiply the same input with
/// several matrices.
#[derive(Debug, Default)]
pub(super) struct RoundedInputs {
    /// The one that was asked for last is last.
    pub(super) entries: Vec<RoundedEntry>,
}

#[derive(Debug)]
pub(super) struct RoundedEntry {
    pub(super) key: RoundedKey,
    pub(super) quantised: Quantised,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RoundedKey {
    pub(super) x: Cols,
    pub(super) version: u64,
    pub(super) rows: usize,
    pub(super) limbs: Limbs,
}

impl RowLists {
    pub(super) fn set(&mut self, calls: &[ExpertCall]) {
        self.rows.clear();
        self.slots.clear();
        self.experts.clear();
        for call in calls {
            self.rows.extend(call.rows.iter().map(|row| row.row));
            self.slots.extend(call.rows.iter().map(|row| row.slot));
            self.experts.extend(call.rows.iter().map(|_| call.expert.key.expert.idx()));
        }
    }
}
