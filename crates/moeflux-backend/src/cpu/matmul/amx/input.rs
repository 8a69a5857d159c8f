//! Activations as tiles: sixteen rows side by side, four columns of each to a
//! lane.

use std::arch::x86_64::*;
use std::ops::Range;

use super::columns::order;
use super::tiles::ROWS;
use crate::cpu::matmul::avx512::transpose::transpose;
use crate::cpu::matmul::avx512::vector::{load_32, load_64, load_singles, store_64, store_floats};
use crate::cpu::matmul::{IntegerProduct, Quantised};

/// Rows of activations of a tile.
pub(super) const X_ROWS: usize = 16;

/// A line of the cache.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Line([u8; 64]);

/// A float of each of sixteen rows.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Lanes(pub(super) [f32; 16]);

impl Lanes {
    pub(super) const ZERO: Lanes = Lanes([0.0; 16]);
}

/// Some rows of activations, kept as long as products ask for the same.
#[derive(Default)]
pub(super) struct Input {
    of: Option<Key>,
    n_digits: usize,
    n_groups: usize,
    /// Lines of one digit of sixteen rows.
    stride: usize,
    /// (x tiles, digits, columns / 4): sixteen rows beside each other.
    q: Vec<Line>,
    /// Scales, (x tiles, groups).
    s: Vec<Lanes>,
    /// Scales times sums, (x tiles, groups).
    st: Vec<Lanes>,
}

/// What the tiles were made of.
#[derive(PartialEq, Eq)]
struct Key {
    quantised: u64,
    rows: Vec<usize>,
    order: Option<&'static [u8; 64]>,
}

impl Input {
    /// Takes some rows of the product's activations.
    #[target_feature(
        enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    pub(super) fn fill(&mut self, product: &IntegerProduct<'_>, rows: Range<usize>) {
        let IntegerProduct { affine, x, x_rows, .. } = product;
        let key = Key {
            quantised: x.id(),
            rows: rows.map(|i| x_rows.at(i)).collect(),
            order: order(affine.bits, affine.group_size),
        };
        if self.of.as_ref() == Some(&key) {
            return;
        }
        (self.n_digits, self.n_groups) = (x.n_digits(), x.cols() / x.group_size());
        self.stride = x.cols() / 4;
        let n_tiles = key.rows.len().div_ceil(X_ROWS);
        self.q.resize(n_tiles * self.n_digits * self.stride, Line([0; 64]));
        self.s.resize(n_tiles * self.n_groups, Lanes::ZERO);
        self.st.resize(n_tiles * self.n_groups, Lanes::ZERO);
        let digits = self.q.chunks_exact_mut(self.stride);
        let which = (0..n_tiles).flat_map(|tile| (0..x.n_digits()).map(move |digit| (tile, digit)));
        for (out, (tile, digit)) in digits.zip(which) {
            let rows = &key.rows[tile * X_ROWS..key.rows.len().min((tile + 1) * X_ROWS)];
            digit_tiles(x, rows, digit, key.order, out);
        }
        let params =
            self.s.chunks_exact_mut(self.n_groups).zip(self.st.chunks_exact_mut(self.n_groups));
        for ((s, st), rows) in params.zip(key.rows.chunks(X_ROWS)) {
            transpose_floats(rows, &|row| x.s(row), s);
            transpose_floats(rows, &|row| x.st(row), st);
        }
        self.of = Some(key);
    }

    /// Bytes from column `col` of one digit of a tile on.
    #[inline]
    pub(super) fn q(&self, tile: usize, digit: usize, col: usize) -> &[u8] {
        let lines = &self.q[(tile * self.n_digits + digit) * self.stride..][..self.stride];
        as_bytes(&lines[col / 4..])
    }

    /// The scale of each group of a tile.
    #[inline]
    pub(super) fn s(&self, tile: usize) -> &[Lanes] {
        &self.s[tile * self.n_groups..][..self.n_groups]
    }

    /// The scale times the sum of each group of a tile.
    #[inline]
    pub(super) fn st(&self, tile: usize) -> &[Lanes] {
        &self.st[tile * self.n_groups..][..self.n_groups]
    }
}

#[inline]
fn as_bytes(lines: &[Line]) -> &[u8] {
    // SAFETY: lines are bytes without gaps.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), size_of_val(lines)) }
}

/// One digit of at most sixteen rows; absent rows are zero.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2,fma,f16c")]
fn digit_tiles(
    x: &Quantised,
    rows: &[usize],
    digit: usize,
    order: Option<&[u8; 64]>,
    out: &mut [Line],
) {
    for (i, out) in out.chunks_mut(16).enumerate() {
        let mut vectors = [_mm512_setzero_si512(); X_ROWS];
        for (it, row) in vectors.iter_mut().zip(rows) {
            let q: &[u8] = bytemuck::cast_slice(&x.q(*row, digit)[i * 64..]);
            *it = match order {
                _ if out.len() < 16 => _mm512_castsi256_si512(load_32(q)),
                Some(order) => _mm512_permutexvar_epi8(load_64(order), load_64(q)),
                None => load_64(q),
            };
        }
        for (out, it) in out.iter_mut().zip(transpose(vectors)) {
            store_64(&mut out.0, it);
        }
    }
}

/// The floats of at most sixteen rows side by side; those of absent rows are
/// zero.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2,fma,f16c")]
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
