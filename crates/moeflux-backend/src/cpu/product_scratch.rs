//! Lists and rounded rows that products keep from call to call.

use super::floats::Floats;
use super::isa::Isa;
use super::matmul::{MatmulJob, Quantised, Rounding};
use super::memory::{Activations, Limbs};
use super::pool::{Pool, SharedMut};
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

/// Inputs that are kept rounded; matrices of one op ask for fewer of one input.
const KEPT: usize = 4;

/// Rounded inputs of recent products: layers multiply the same input with
/// several matrices.
#[derive(Debug, Default)]
pub(super) struct RoundedInputs {
    /// The one that was asked for last is last.
    entries: Vec<RoundedEntry>,
}

#[derive(Debug)]
struct RoundedEntry {
    key: RoundedKey,
    quantised: Quantised,
}

/// Which rows are rounded, and how.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RoundedKey {
    x: Cols,
    version: u64,
    rows: usize,
    limbs: Limbs,
}

impl RoundedKey {
    /// The first `rows` rows of `x`, which is in `buf`.
    pub(super) fn new(x: Cols, buf: &Activations, rows: usize, limbs: Limbs) -> RoundedKey {
        RoundedKey { x, version: buf.version, rows, limbs }
    }
}

impl RoundedInputs {
    /// Rounds what the key says of `buf`, unless it is at hand. The input that was asked for longest
    /// ago makes room, so that what one op asks for stays until it is done.
    pub(super) fn round(&mut self, key: RoundedKey, buf: &Activations, pool: &Pool, isa: Isa) {
        let entries = &mut self.entries;
        if let Some(at) = entries.iter().position(|entry| entry.key == key) {
            let entry = entries.remove(at);
            entries.push(entry);
            return;
        }
        let mut quantised =
            if entries.len() < KEPT { Quantised::default() } else { entries.remove(0).quantised };
        let rounding = Rounding {
            x: &buf.data[key.x.start..],
            stride: buf.width,
            n_rows: key.rows,
            cols: key.x.len,
            group_size: key.limbs.group_size,
            n_limbs: key.limbs.n_limbs,
        };
        quantised.quantise(pool, isa, rounding);
        entries.push(RoundedEntry { key, quantised });
    }

    /// What was rounded last under this key.
    ///
    /// # Panics
    /// If [`round`](RoundedInputs::round) was not called for it.
    pub(super) fn get(&self, key: RoundedKey) -> &Quantised {
        let entry = self.entries.iter().find(|entry| entry.key == key);
        &entry.expect("`round` was called for this input").quantised
    }
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
