//! Lists that mixture-of-experts blocks fill, kept from block to block.

use std::sync::Arc;

use moeflux_backend::{ExpertCall, ExpertRow, ResidentCall, Routing};
use moeflux_core::{Expert, ExpertId};
use moeflux_store::Batch;

/// What a block writes down; its memory serves block after block.
#[derive(Debug, Default)]
pub struct MoeLists {
    pub(crate) routing: Routing,
    pub(crate) wanted: Wanted,
    pub(crate) batch: Batch,
    pub(crate) calls: Vec<ExpertCall>,
    /// The weights of experts that are done; zero for all others.
    pub(crate) so_far: Vec<f32>,
}

/// Copies the weights of rows that are done.
pub(crate) fn take_over<'a>(
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
pub(crate) struct Wanted {
    /// In ascending order of experts, those of one expert in ascending order of slots.
    pub(crate) chosen: Vec<Chosen>,
    /// Where each expert's rows end.
    pub(crate) ends: Vec<usize>,
    /// Experts that are resident on the device; the store is not asked for them.
    pub(crate) resident: Vec<ResidentCall>,
    /// Empty lists of rows.
    pub(crate) spare: Vec<Vec<ExpertRow>>,
}

/// An expert that a row chose.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chosen {
    pub(crate) expert: ExpertId,
    pub(crate) row: ExpertRow,
}

impl Chosen {
    fn has_expert_of(&self, other: &Chosen) -> bool {
        self.expert == other.expert
    }
}

impl Wanted {
    pub(crate) fn set(
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
        let chosen = experts.iter().enumerate();
        let chosen = chosen.map(|(slot, expert)| Chosen { expert: *expert, row: as_row(slot) });
        self.chosen.extend(chosen);
        self.chosen.sort_unstable_by_key(|chosen| (chosen.expert, chosen.row.slot));
        self.take_resident(is_resident);
        let (ends, mut end) = (&mut self.ends, 0);
        ends.clear();
        ends.extend(self.chosen.chunk_by(Chosen::has_expert_of).map(|run| {
            end += run.len();
            end
        }));
    }

    /// Moves the experts that are resident on the device to their own list.
    pub(crate) fn take_resident(&mut self, is_resident: impl Fn(ExpertId) -> bool) {
        let Wanted { chosen, resident, spare, .. } = self;
        spare.extend(resident.drain(..).map(|mut call| {
            call.rows.clear();
            call.rows
        }));
        for group in chosen.chunk_by(Chosen::has_expert_of) {
            let expert = group[0].expert;
            if !is_resident(expert) {
                continue;
            }
            let mut rows = spare.pop().unwrap_or_default();
            rows.extend(group.iter().map(|chosen| chosen.row));
            resident.push(ResidentCall { expert, rows });
        }
        if !resident.is_empty() {
            let is_resident =
                |expert| resident.binary_search_by_key(&expert, |call| call.expert).is_ok();
            chosen.retain(|chosen| !is_resident(chosen.expert));
        }
    }

    /// The choices of one of the experts.
    pub(crate) fn of(&self, i: usize) -> &[Chosen] {
        let start = i.checked_sub(1).map_or(0, |last| self.ends[last]);
        &self.chosen[start..self.ends[i]]
    }

    /// Each expert with the number of its rows.
    pub(crate) fn by_rows(&self) -> impl ExactSizeIterator<Item = (ExpertId, usize)> {
        (0..self.ends.len()).map(|i| (self.of(i)[0].expert, self.of(i).len()))
    }

    /// The rows of one of the experts.
    pub(crate) fn call(&mut self, i: usize, expert: Arc<Expert>) -> ExpertCall {
        let mut rows = self.spare.pop().unwrap_or_default();
        rows.extend(self.of(i).iter().map(|chosen| chosen.row));
        ExpertCall { expert, rows }
    }

    /// Drops the experts and takes the lists back.
    pub(crate) fn end(&mut self, calls: &mut Vec<ExpertCall>) {
        self.spare.extend(calls.drain(..).map(|mut call| {
            call.rows.clear();
            call.rows
        }));
    }
}
