//! Lists that mixture-of-experts blocks fill, kept from block to block.

use std::sync::Arc;

use moeflux_backend::{ExpertCall, ExpertRow, ResidentCall, Routing};
use moeflux_core::{Expert, ExpertId};
use moeflux_store::Batch;

/// What a block writes down; its memory serves block after block.
#[derive(Debug, Default)]
pub struct MoeLists {
    pub(super) routing: Routing,
    pub(super) wanted: Wanted,
    pub(super) batch: Batch,
    pub(super) calls: Vec<ExpertCall>,
    /// The weights of experts that are done; zero for all others.
    pub(super) so_far: Vec<f32>,
}

/// Copies the weights of rows that are done.
pub(super) fn take_over<'a>(
    so_far: &mut [f32],
    weights: &[f32],
    done: impl Iterator<Item = &'a Vec<ExpertRow>>,
) {
    for row in done.flatten() {
        so_far[row.slot as usize] = weights[row.slot as usize];
    }
}

/// The distinct experts of a batch, ascending, each with the rows that chose
/// it, so that records are asked for in the order in which they lie on disk.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// Ascending.
    pub(super) chosen: Vec<(ExpertId, ExpertRow)>,
    /// Where each expert's rows end.
    pub(super) ends: Vec<usize>,
    /// Experts that are resident on the device; the store is not asked for them.
    pub(super) resident: Vec<ResidentCall>,
    /// Empty lists of rows.
    pub(super) spare: Vec<Vec<ExpertRow>>,
}

impl Wanted {
    pub(super) fn set(
        &mut self,
        experts: &[ExpertId],
        top_k: usize,
        is_resident: impl Fn(ExpertId) -> bool,
    ) {
        let as_row = |slot: usize| ExpertRow {
            row: u32::try_from(slot / top_k).expect("a batch has few rows"),
            slot: u32::try_from(slot).expect("a batch has few slots"),
        };
        self.chosen.clear();
        self.chosen.extend(experts.iter().enumerate().map(|(slot, id)| (*id, as_row(slot))));
        self.chosen.sort_unstable_by_key(|(id, row)| (*id, row.slot));
        self.take_resident(is_resident);
        let (ends, mut end) = (&mut self.ends, 0);
        ends.clear();
        ends.extend(self.chosen.chunk_by(|a, b| a.0 == b.0).map(|it| {
            end += it.len();
            end
        }));
    }

    /// Moves the experts that are resident on the device to their own list.
    pub(super) fn take_resident(&mut self, is_resident: impl Fn(ExpertId) -> bool) {
        let Wanted { chosen, resident, spare, .. } = self;
        spare.extend(resident.drain(..).map(|mut call| {
            call.rows.clear();
            call.rows
        }));
        for group in chosen.chunk_by(|a, b| a.0 == b.0).filter(|group| is_resident(group[0].0)) {
            let mut rows = spare.pop().unwrap_or_default();
            rows.extend(group.iter().map(|(_, row)| *row));
            resident.push(ResidentCall { expert: group[0].0, rows });
        }
        if !resident.is_empty() {
            chosen.retain(|(id, _)| resident.binary_search_by_key(id, |call| call.expert).is_err());
        }
    }

    pub(super) fn of(&self, i: usize) -> &[(ExpertId, ExpertRow)] {
        let start = i.checked_sub(1).map_or(0, |it| self.ends[it]);
        &self.chosen[start..self.ends[i]]
    }

    /// Each expert with the number of its rows.
    pub(super) fn by_rows(&self) -> impl ExactSizeIterator<Item = (ExpertId, usize)> {
        (0..self.ends.len()).map(|i| (self.of(i)[0].0, self.of(i).len()))
    }

    /// The rows of one of the experts.
    pub(super) fn call(&mut self, i: usize, expert: Arc<Expert>) -> ExpertCall {
        let mut rows = self.spare.pop().unwrap_or_default();
        rows.extend(self.of(i).iter().map(|it| it.1));
        ExpertCall { expert, rows }
    }

    /// Drops the experts and takes the lists back.
    pub(super) fn end(&mut self, calls: &mut Vec<ExpertCall>) {
        self.spare.extend(calls.drain(..).map(|mut it| {
            it.rows.clear();
            it.rows
        }));
    }
}
