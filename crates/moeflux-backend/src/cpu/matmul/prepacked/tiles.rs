//! Activations as AMX wants them: tiles of sixteen rows side by side, four columns of each to a lane.

use crate::cpu::vector::Line;

/// A line of the cache, a byte a column.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(in crate::cpu::matmul) struct Bytes(pub(in crate::cpu::matmul) [u8; 64]);

/// The activations of all jobs of a call that want tiles; kept from call to
/// call for its memory.
#[derive(Debug, Default)]
pub(in crate::cpu::matmul) struct Inputs {
    /// Of each: (x tiles, products, limbs, depth / 4).
    pub(in crate::cpu::matmul) q: Vec<Bytes>,
    /// Scales of each, (x tiles, groups).
    pub(in crate::cpu::matmul) s: Vec<Line>,
    /// Scales times sums of each, (x tiles, groups).
    pub(in crate::cpu::matmul) st: Vec<Line>,
    pub(in crate::cpu::matmul) places: Vec<Place>,
    /// Of every job.
    pub(in crate::cpu::matmul) of_jobs: Vec<Option<usize>>,
}

/// Where one input is stored.
#[derive(Clone, Copy, Debug)]
pub(in crate::cpu::matmul) struct Place {
    /// A job that wants it.
    pub(in crate::cpu::matmul) job: usize,
    pub(in crate::cpu::matmul) depth: usize,
    pub(in crate::cpu::matmul) order: Option<&'static [u8; 64]>,
    pub(in crate::cpu::matmul) n_tiles: usize,
    /// Lines and groups of one tile.
    pub(in crate::cpu::matmul) lines: usize,
    pub(in crate::cpu::matmul) n_groups: usize,
    pub(in crate::cpu::matmul) first_tile: usize,
    pub(in crate::cpu::matmul) first_line: usize,
    pub(in crate::cpu::matmul) first_group: usize,
}

/// The activations of a job.
#[derive(Clone, Copy, Debug)]
pub(in crate::cpu::matmul) struct Input<'a> {
    q: &'a [Bytes],
    s: &'a [Line],
    st: &'a [Line],
    place: Place,
}

impl Inputs {
    /// What was made for a job.
    pub(in crate::cpu::matmul) fn of(&self, job: usize) -> Option<Input<'_>> {
        let place = self.places[(*self.of_jobs.get(job)?)?];
        let tiles = |first: usize, each: usize| first..first + place.n_tiles * each;
        Some(Input {
            q: &self.q[tiles(place.first_line, place.lines)],
            s: &self.s[tiles(place.first_group, place.n_groups)],
            st: &self.st[tiles(place.first_group, place.n_groups)],
            place,
        })
    }
}

impl<'a> Input<'a> {
    /// How many tiles.
    pub(in crate::cpu::matmul) fn n_tiles(&self) -> usize {
        self.place.n_tiles
    }

    /// Columns of one product of tiles.
    pub(in crate::cpu::matmul) fn depth(&self) -> usize {
        self.place.depth
    }

    /// The limbs of a tile from column `col` on.
    #[inline]
    pub(in crate::cpu::matmul) fn q(&self, tile: usize, col: usize, n_limbs: usize) -> &'a [u8] {
        let lines = &self.q[tile * self.place.lines..][..self.place.lines];
        as_bytes(&lines[col / 4 * n_limbs..])
    }

    /// The scale of each group of a tile.
    #[inline]
    pub(in crate::cpu::matmul) fn s(&self, tile: usize) -> &'a [Line] {
        &self.s[tile * self.place.n_groups..][..self.place.n_groups]
    }

    /// The scale times the sum of each group of a tile.
    #[inline]
    pub(in crate::cpu::matmul) fn st(&self, tile: usize) -> &'a [Line] {
        &self.st[tile * self.place.n_groups..][..self.place.n_groups]
    }
}

#[inline]
fn as_bytes(lines: &[Bytes]) -> &[u8] {
    // SAFETY: lines are bytes without gaps.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), size_of_val(lines)) }
}
