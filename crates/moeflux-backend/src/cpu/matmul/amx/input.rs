//! Activations as tiles: sixteen rows side by side, four columns of each to a
//! lane. They are made once a call, by all threads, for all tasks.

use std::arch::x86_64::*;

use super::order::order;
use super::tiles::ROWS;
use crate::cpu::Isa;
use crate::cpu::isa::Level;
use crate::cpu::matmul::avx512::transpose::transpose;
use crate::cpu::matmul::avx512::vector::{load_32, load_64, load_singles, store_64, store_floats};
use crate::cpu::matmul::integers::{Integers, width};
use crate::cpu::matmul::prepacked::{Bytes, Inputs, Place};
use crate::cpu::matmul::{Activations, MatmulJob, Quantised, RowMap};
use crate::cpu::pool::{Pool, SharedMut};
use crate::cpu::vector::Line;

/// Rows of activations of a tile.
pub(super) const X_ROWS: usize = 16;

/// From this many rows of activations on, tiles are quicker than vectors: the sums of each group
/// leave the tiles through memory, and small groups have little arithmetic before that.
fn min_rows(group_size: usize) -> Option<usize> {
    match group_size {
        ..32 => None,
        32 => Some(32),
        _ => Some(4),
    }
}

/// Takes the activations of those jobs that have enough rows.
pub(in crate::cpu::matmul) fn prepack_all(
    inputs: &mut Inputs,
    pool: &Pool,
    isa: Isa,
    jobs: &[MatmulJob<'_>],
) {
    inputs.places.clear();
    inputs.of_jobs.clear();
    if isa.level() != Level::Amx {
        return;
    }
    let (mut n_tiles, mut n_lines, mut n_groups) = (0, 0, 0);
    for (i, job) in jobs.iter().enumerate() {
        let Some(mut place) = wanted(i, job) else {
            inputs.of_jobs.push(None);
            continue;
        };
        // Neighbours multiply the same rows.
        let known = inputs.places.iter().rposition(|known| is_same(known, &place, jobs));
        if known.is_none() {
            (place.first_tile, place.first_line, place.first_group) = (n_tiles, n_lines, n_groups);
            n_tiles += place.n_tiles;
            n_lines += place.n_tiles * place.lines;
            n_groups += place.n_tiles * place.n_groups;
            inputs.places.push(place);
        }
        inputs.of_jobs.push(Some(known.unwrap_or(inputs.places.len() - 1)));
    }
    grow(&mut inputs.q, n_lines, Bytes([0; 64]));
    grow(&mut inputs.s, n_groups, Line::ZERO);
    grow(&mut inputs.st, n_groups, Line::ZERO);
    let (q, s) = (SharedMut::new(&mut inputs.q), SharedMut::new(&mut inputs.s));
    let st = SharedMut::new(&mut inputs.st);
    let places = &inputs.places;
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
    (n >= min_rows(integers.group_size)?).then(|| Place {
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
    q: &mut [Bytes],
    s: &mut [Line],
    st: &mut [Line],
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

/// One limb of at most sixteen rows; absent rows are zero.
#[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
fn limb_tiles(x: &Quantised, rows: &[usize], limb: usize, place: &Place, out: &mut [Bytes]) {
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
fn transpose_floats<'a>(rows: &[usize], row: &dyn Fn(usize) -> &'a [f32], out: &mut [Line]) {
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
