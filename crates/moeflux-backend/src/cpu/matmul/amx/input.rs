//! Activations as tiles: sixteen rows side by side, four columns of each to a
//! lane. They are made once a call, by all threads, for all tasks.

use std::arch::x86_64::*;

use super::order::order;
use super::tiles::ROWS;
use crate::cpu::Isa;
use crate::cpu::isa::Level;
use crate::cpu::matmul::avx512::transpose::transpose;
use crate::cpu::matmul::avx512::vector::{
    Lanes, load_32, load_64, load_singles, store_64, store_floats,
};
use crate::cpu::matmul::integers::{Integers, width};
use crate::cpu::matmul::{Activations, MatmulJob, Quantised, RowMap};
use crate::cpu::pool::{Pool, SharedMut};

/// Rows of activations of a tile.
pub(super) const X_ROWS: usize = 16;

/// From this many rows of activations on, a tile is worth its unused lanes.
const MIN_ROWS: usize = 4;

/// A line of the cache.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Line([u8; 64]);

/// The activations of all jobs of a call that want tiles; kept from call to
/// call for its memory.
#[derive(Debug, Default)]
pub(in crate::cpu::matmul) struct Inputs {
    /// Of each: (x tiles, products, limbs, depth / 4).
    q: Vec<Line>,
    /// Scales of each, (x tiles, groups).
    s: Vec<Lanes>,
    /// Scales times sums of each, (x tiles, groups).
    st: Vec<Lanes>,
    places: Vec<Place>,
    /// Of every job.
    of_jobs: Vec<Option<usize>>,
}

/// Where one input is stored.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// A job that wants it.
    job: usize,
    depth: usize,
    order: Option<&'static [u8; 64]>,
    n_tiles: usize,
    /// Lines and groups of one tile.
    lines: usize,
    n_groups: usize,
    first_tile: usize,
    first_line: usize,
    first_group: usize,
}

/// The activations of a job.
#[derive(Clone, Copy, Debug)]
pub(in crate::cpu::matmul) struct Input<'a> {
    q: &'a [Line],
    s: &'a [Lanes],
    st: &'a [Lanes],
    place: Place,
}

impl Inputs {
    /// Takes the activations of those jobs that have enough rows.
    pub(in crate::cpu::matmul) fn fill(&mut self, pool: &Pool, isa: Isa, jobs: &[MatmulJob<'_>]) {
        self.places.clear();
        self.of_jobs.clear();
        if isa.level() != Level::Amx {
            return;
        }
        let (mut n_tiles, mut n_lines, mut n_groups) = (0, 0, 0);
        for (i, job) in jobs.iter().enumerate() {
            let Some(mut place) = wanted(i, job) else {
                self.of_jobs.push(None);
                continue;
            };
            // Neighbours multiply the same rows.
            let known = self.places.iter().rposition(|known| is_same(known, &place, jobs));
            if known.is_none() {
                (place.first_tile, place.first_line, place.first_group) =
                    (n_tiles, n_lines, n_groups);
                n_tiles += place.n_tiles;
                n_lines += place.n_tiles * place.lines;
                n_groups += place.n_tiles * place.n_groups;
                self.places.push(place);
            }
            self.of_jobs.push(Some(known.unwrap_or(self.places.len() - 1)));
        }
        grow(&mut self.q, n_lines, Line([0; 64]));
        grow(&mut self.s, n_groups, Lanes::ZERO);
        grow(&mut self.st, n_groups, Lanes::ZERO);
        let (q, s) = (SharedMut::new(&mut self.q), SharedMut::new(&mut self.s));
        let st = SharedMut::new(&mut self.st);
        let places = &self.places;
        pool.run(n_tiles, &|tile| {
            let place = &places[places.partition_point(|place| place.first_tile <= tile) - 1];
            let tile = tile - place.first_tile;
            let (line, group) =
                (place.first_line + tile * place.lines, place.first_group + tile * place.n_groups);
            // SAFETY: places do not overlap, and a tile belongs to one task.
            let q = unsafe { q.slice(line..line + place.lines) };
            // SAFETY: places do not overlap, and a tile belongs to one task.
            let s = unsafe { s.slice(group..group + place.n_groups) };
            // SAFETY: places do not overlap, and a tile belongs to one task.
            let st = unsafe { st.slice(group..group + place.n_groups) };
            // SAFETY: the level is AMX, as was checked above, and holding it proves these parts of AVX-512.
            unsafe { prepack(&jobs[place.job], place, tile, q, s, st) };
        });
    }

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
    pub(super) fn n_tiles(&self) -> usize {
        self.place.n_tiles
    }

    /// Columns of one product of tiles.
    pub(super) fn depth(&self) -> usize {
        self.place.depth
    }

    /// The limbs of a tile from column `col` on.
    #[inline]
    pub(super) fn q(&self, tile: usize, col: usize, n_limbs: usize) -> &'a [u8] {
        let lines = &self.q[tile * self.place.lines..][..self.place.lines];
        as_bytes(&lines[col / 4 * n_limbs..])
    }

    /// The scale of each group of a tile.
    #[inline]
    pub(super) fn s(&self, tile: usize) -> &'a [Lanes] {
        &self.s[tile * self.place.n_groups..][..self.place.n_groups]
    }

    /// The scale times the sum of each group of a tile.
    #[inline]
    pub(super) fn st(&self, tile: usize) -> &'a [Lanes] {
        &self.st[tile * self.place.n_groups..][..self.place.n_groups]
    }
}

fn grow<T: Clone>(vec: &mut Vec<T>, len: usize, zero: T) {
    if vec.len() < len {
        vec.resize(len, zero);
    }
}

/// What a job wants, if it has enough rows for tiles.
fn wanted(i: usize, job: &MatmulJob<'_>) -> Option<Place> {
    let Activations::Quantised(x) = job.x else { return None };
    let integers = Integers::of(job.weight.format)?;
    let n = job.x_rows.len();
    (n >= MIN_ROWS).then(|| Place {
        job: i,
        depth: integers.group_size.min(64),
        order: order(width(integers.codes), integers.group_size),
        n_tiles: n.div_ceil(X_ROWS),
        lines: x.n_limbs() * x.cols() / 4,
        n_groups: x.cols() / x.group_size(),
        first_tile: 0,
        first_line: 0,
        first_group: 0,
    })
}

/// Whether two jobs want the same.
fn is_same(a: &Place, b: &Place, jobs: &[MatmulJob<'_>]) -> bool {
    let (Activations::Quantised(x), Activations::Quantised(y)) = (jobs[a.job].x, jobs[b.job].x)
    else {
        return false;
    };
    let same_rows = match (jobs[a.job].x_rows, jobs[b.job].x_rows) {
        (RowMap::Range { first: a, n }, RowMap::Range { first: b, n: m }) => (a, n) == (b, m),
        (RowMap::List(a), RowMap::List(b)) => std::ptr::eq(a, b),
        _ => false,
    };
    same_rows && x.id() == y.id() && (a.order, a.depth) == (b.order, b.depth)
}

/// One tile.
#[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
fn prepack(
    job: &MatmulJob<'_>,
    place: &Place,
    tile: usize,
    q: &mut [Line],
    s: &mut [Lanes],
    st: &mut [Lanes],
) {
    let Activations::Quantised(x) = job.x else { return };
    let n = X_ROWS.min(job.x_rows.len() - tile * X_ROWS);
    let rows: [usize; X_ROWS] =
        std::array::from_fn(|i| if i < n { job.x_rows.at(tile * X_ROWS + i) } else { 0 });
    let rows = &rows[..n];
    for limb in 0..x.n_limbs() {
        limb_tiles(x, rows, limb, place, q);
    }
    transpose_floats(rows, &|row| x.s(row), s);
    transpose_floats(rows, &|row| x.st(row), st);
}

#[inline]
fn as_bytes(lines: &[Line]) -> &[u8] {
    // SAFETY: lines are bytes without gaps.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), size_of_val(lines)) }
}

/// One limb of at most sixteen rows; absent rows are zero.
#[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
fn limb_tiles(x: &Quantised, rows: &[usize], limb: usize, place: &Place, out: &mut [Line]) {
    let lines = place.depth / 4;
    for col in (0..x.cols()).step_by(64) {
        let is_whole = col + 64 <= x.cols();
        let mut vectors = [_mm512_setzero_si512(); X_ROWS];
        for (it, row) in vectors.iter_mut().zip(rows) {
            let q: &[u8] = bytemuck::cast_slice(&x.q(*row, limb)[col..]);
            *it = match place.order {
                _ if !is_whole => _mm512_castsi256_si512(load_32(q)),
                Some(order) => _mm512_permutexvar_epi8(load_64(order), load_64(q)),
                None => load_64(q),
            };
        }
        let vectors = transpose(vectors);
        let n_lines = if is_whole { 16 } else { 8 };
        let first = col / 4 * x.n_limbs() + limb * lines;
        for (i, it) in vectors[..n_lines].iter().enumerate() {
            let at = first + i / lines * lines * x.n_limbs() + i % lines;
            store_64(&mut out[at].0, *it);
        }
    }
}

/// The floats of at most sixteen rows side by side; those of absent rows are
/// zero.
#[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
fn transpose_floats<'a>(rows: &[usize], row: &dyn Fn(usize) -> &'a [f32], out: &mut [Lanes]) {
    for (i, out) in out.chunks_mut(16).enumerate() {
        let mut vectors = [_mm512_setzero_si512(); ROWS];
        for (it, idx) in vectors.iter_mut().zip(rows) {
            let floats = &row(*idx)[i * 16..][..out.len()];
            *it = load_singles(bytemuck::cast_slice(floats));
        }
        for (out, it) in out.iter_mut().zip(transpose(vectors)) {
            store_floats(&mut out.0, _mm512_castsi512_ps(it));
        }
    }
}
