//! One row of activations: the speed of memory is the limit.
//!
//! The integers of a matrix are one stream of groups, row after row. Sixteen
//! rows of it are read in the order of memory and their dots stored; then the
//! dots are transposed, and the chains of `fma` run with the rows as lanes.

use std::arch::x86_64::*;
use std::cell::Cell;
use std::ops::Range;

use super::ROWS;
use super::dots::{Ahead, Repeated, group_dots, repeat};
use super::params::{GROUPS, narrow_params, param_tile};
use super::transpose::{transpose, transpose_narrow};
use super::vector::{load_64, store_floats};
use crate::cpu::matmul::IntegerProduct;
use crate::cpu::matmul::jobs::OutPart;

/// Groups of a row whose dots are kept between the two halves: 16 KiB for
/// sixteen rows.
const PIECE: usize = 256;

/// What a call needs besides its arguments.
#[derive(Default)]
struct Scratch {
    /// The digits of the activations, if there are two the larger one first.
    x: [Repeated; 2],
    dots: Vec<f32>,
}

thread_local! {
    /// Kept from call to call: small matrices are as quick as an allocation.
    static SCRATCH: Cell<Scratch> = Cell::default();
}

/// The outputs of `rows` for the `i`-th row of the activations.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2,fma,f16c")]
pub(super) fn integer_row<const BITS: usize, const GROUP: usize>(
    product: IntegerProduct<'_>,
    rows: Range<usize>,
    i: usize,
    out: &mut OutPart<'_>,
) {
    let n_groups = product.n_groups();
    let x_row = product.x_rows.at(i);
    let mut scratch = SCRATCH.take();
    let x = &mut scratch.x[..product.x.n_digits()];
    for (digit, x) in x.iter_mut().enumerate() {
        repeat::<BITS, GROUP>(product.x.q(x_row, digit), x);
    }
    scratch.dots.resize(n_groups.min(PIECE) * ROWS, 0.0);
    let dots = &mut scratch.dots[..];
    for row in rows.clone().step_by(ROWS) {
        let block = row..rows.end.min(row + ROWS);
        let mut sums = Sums::new(&product, block.clone(), x_row);
        if n_groups <= PIECE {
            let packed = product.weight_rows(block.clone());
            group_dots::<BITS, GROUP>(packed, x, 0, ahead(&product, row, 0), dots);
            sums.add_all(dots);
        } else {
            for first in (0..n_groups).step_by(PIECE) {
                let groups = first..n_groups.min(first + PIECE);
                dots_by_row::<BITS, GROUP>(&product, block.clone(), x, groups.clone(), dots);
                sums.add(dots, groups);
            }
        }
        out.put(i, row, &sums.total()[..block.len()]);
    }
    SCRATCH.set(scratch);
}

/// The dots of some groups of each row, (rows, groups).
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2,fma,f16c")]
fn dots_by_row<const BITS: usize, const GROUP: usize>(
    product: &IntegerProduct<'_>,
    rows: Range<usize>,
    x: &[Repeated],
    groups: Range<usize>,
    dots: &mut [f32],
) {
    let group_bytes = GROUP * BITS / 8;
    for (row, dots) in rows.zip(dots.chunks_exact_mut(groups.len())) {
        let packed = product.weight_rows(row..row + 1);
        let packed = &packed[groups.start * group_bytes..groups.end * group_bytes];
        let ahead = ahead(product, row, groups.start);
        group_dots::<BITS, GROUP>(packed, x, groups.start, ahead, dots);
    }
}

/// The parameters that follow those of group `group` of `row` by a block.
fn ahead<'a>(product: &IntegerProduct<'a>, row: usize, group: usize) -> Ahead<'a> {
    let size = product.affine.params.bytes();
    let at = ((row + ROWS) * product.n_groups() + group) * size;
    let (scales, biases) = (product.weight.scales, product.weight.biases);
    Ahead { scales, biases, step: GROUPS * size, at }
}

/// The two accumulators of sixteen outputs.
struct Sums<'a> {
    product: &'a IntegerProduct<'a>,
    rows: Range<usize>,
    s: &'a [f32],
    st: &'a [f32],
    acc: __m512,
    off: __m512,
}

impl<'a> Sums<'a> {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn new(product: &'a IntegerProduct<'a>, rows: Range<usize>, x_row: usize) -> Self {
        let (s, st) = (product.x.s(x_row), product.x.st(x_row));
        let zero = _mm512_setzero_ps();
        Sums { product, rows, s, st, acc: zero, off: zero }
    }

    /// Adds all groups of each row, of which these are the dots: (rows, groups).
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
    fn add_all(&mut self, dots: &[f32]) {
        match self.product.n_groups() {
            1 if self.rows.len() == ROWS => self.add_narrow::<1>(dots),
            2 if self.rows.len() == ROWS => self.add_narrow::<2>(dots),
            4 if self.rows.len() == ROWS => self.add_narrow::<4>(dots),
            8 if self.rows.len() == ROWS => self.add_narrow::<8>(dots),
            n => self.add(dots, 0..n),
        }
    }

    /// Adds the `N` groups of each of sixteen rows.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
    fn add_narrow<const N: usize>(&mut self, dots: &[f32]) {
        let dots: &[u8] = bytemuck::cast_slice(&dots[..N * ROWS]);
        let mut tile = [_mm512_setzero_si512(); N];
        for (k, it) in tile.iter_mut().enumerate() {
            *it = load_64(&dots[64 * k..]);
        }
        let tile = transpose_narrow(tile);
        let params = narrow_params::<N>(self.product, self.rows.start);
        let (s, st) = (&self.s[..N], &self.st[..N]);
        for g in 0..N {
            self.add_group(tile[g], params[g], s[g], st[g]);
        }
    }

    /// Adds one group, whose dots are `d`.
    #[inline]
    #[target_feature(enable = "avx512f,fma")]
    fn add_group(&mut self, d: __m512i, (scale, bias): (__m512, __m512), s: f32, st: f32) {
        let scale = _mm512_mul_ps(scale, _mm512_set1_ps(s));
        self.acc = _mm512_fmadd_ps(_mm512_castsi512_ps(d), scale, self.acc);
        self.off = _mm512_fmadd_ps(bias, _mm512_set1_ps(st), self.off);
    }

    /// Adds some groups of each row, of which these are the dots: (rows, groups).
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
    fn add(&mut self, dots: &[f32], groups: Range<usize>) {
        for first in (0..groups.len()).step_by(GROUPS) {
            let n = GROUPS.min(groups.len() - first);
            let at = groups.start + first;
            let params = param_tile(self.product, self.rows.clone(), at);
            let dots = self.dot_tile(dots, groups.len(), first..first + n);
            let (s, st) = (&self.s[at..at + n], &self.st[at..at + n]);
            for (g, (s, st)) in s.iter().zip(st).enumerate() {
                self.add_group(dots[g], (params.scale[g], params.bias[g]), *s, *st);
            }
        }
    }

    /// Some columns of `dots`, (rows, n_cols); lanes are rows.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2")]
    fn dot_tile(&self, dots: &[f32], n_cols: usize, cols: Range<usize>) -> [__m512i; GROUPS] {
        let mask = ((1u32 << cols.len()) - 1) as u16;
        let mut tile = [_mm512_setzero_si512(); ROWS];
        for (r, it) in tile.iter_mut().enumerate().take(self.rows.len()) {
            let row = &dots[r * n_cols + cols.start..r * n_cols + cols.end];
            // SAFETY: the mask lets only the slice's own elements be read.
            *it = unsafe { _mm512_maskz_loadu_epi32(mask, row.as_ptr().cast()) };
        }
        transpose(tile)
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn total(&self) -> [f32; ROWS] {
        let mut out = [0.0; ROWS];
        store_floats(&mut out, _mm512_add_ps(self.acc, self.off));
        out
    }
}
