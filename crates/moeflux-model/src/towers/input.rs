//! What a tower is given of a picture: the numbers of its patches and the vectors of their places, which
//! threads of the host prepare.

use std::ops::Range;
use std::thread;

use moeflux_core::threads::share_out;

use super::positions::{Grid, Order, TableOnGrid};
use super::stem::Stem;

/// Patches that a thread prepares at a time.
const PART: usize = 32;

/// Threads at most: more wait for memory.
const MAX_THREADS: usize = 16;

/// A picture as a tower takes it.
#[derive(Clone, Copy)]
pub struct Picture<'a> {
    /// Its patches: whole squares of those that the tower merges.
    pub grid: Grid,
    /// Writes the numbers of one patch, [`Tower::patch_len`](super::Tower::patch_len) of them. Patches are
    /// numbered in the order of the published processor. Several threads call it.
    pub write_patch: &'a (dyn Fn(usize, &mut [f32]) + Sync),
}

/// Where the patches of a picture come from.
pub(super) struct Source<'a> {
    pub(super) picture: Picture<'a>,
    /// The order in which the picture numbers its patches.
    pub(super) order: Order,
    /// That of the tower's rows.
    pub(super) rows: Order,
    pub(super) stem: &'a Stem,
    pub(super) table: Option<TableOnGrid<'a>>,
}

/// Rows of patches on the host, whose memory serves one chunk after the other.
#[derive(Debug)]
pub(super) struct Input {
    patch_len: usize,
    width: usize,
    numbers: Vec<f32>,
    places: Vec<f32>,
}

impl Input {
    pub(super) fn new(patch_len: usize, width: usize) -> Input {
        Input { patch_len, width, numbers: Vec::new(), places: Vec::new() }
    }

    /// Prepares some rows of a picture. Returns their numbers and, where the tower has a table, the vectors
    /// of their places.
    pub(super) fn prepare(
        &mut self,
        source: &Source<'_>,
        rows: Range<usize>,
    ) -> (&[f32], Option<&[f32]>) {
        let Input { patch_len, width, numbers, places } = self;
        numbers.resize(rows.len() * *patch_len, 0.0);
        places.resize(rows.len() * *width, 0.0);
        let firsts = rows.step_by(PART);
        let parts = numbers.chunks_mut(PART * *patch_len).zip(places.chunks_mut(PART * *width));
        let n_threads = thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
        share_out(n_threads, firsts.zip(parts).collect(), |(first, (numbers, places))| {
            let each = numbers.chunks_mut(*patch_len).zip(places.chunks_mut(*width));
            for (row, (numbers, place)) in (first..).zip(each) {
                source.write(row, numbers, place);
            }
        });
        (numbers, source.table.is_some().then_some(&**places))
    }
}

impl Source<'_> {
    /// Writes what a row of the tower is made of.
    fn write(&self, row: usize, numbers: &mut [f32], place_vector: &mut [f32]) {
        let Picture { grid, write_patch } = self.picture;
        let place = self.rows.place(grid, row);
        write_patch(self.order.number(grid, place), numbers);
        self.stem.centre(numbers);
        if let Some(table) = &self.table {
            table.write(place, place_vector);
        }
    }
}
