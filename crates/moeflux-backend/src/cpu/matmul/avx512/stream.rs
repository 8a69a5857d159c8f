//! One row of activations: the speed of memory is the limit.
//!
//! The integers of a matrix are one stream of groups, row after row. Sixteen
//! rows of it are read in the order of memory and their dots stored; then the
//! dots are transposed, and the chains of `fma` run with the rows as lanes.
//! Where the shape allows, that second half of sixteen rows is done bit by bit
//! while the next sixteen are read, so that memory never waits for it.

use std::arch::x86_64::*;
use std::cell::Cell;
use std::ops::Range;

use moeflux_core::quant::{Float, MatrixView};

use super::dots::{
    DISTANCE, ParamPrefetch, Repeated, Steps, group_dots, prefetch_all, repeat, step_bytes,
};
use super::lanes::Zmm;
use super::params::{GROUPS, eight_bytes, narrow_params, param_tile};
use super::transpose::{transpose, transpose_lanes, transpose_narrow};
use super::vector::{ROWS, load_64, load_lanes, store_floats};
use crate::cpu::matmul::integers::{ParamFormat, width};
use crate::cpu::matmul::product::IntegerProduct;
use crate::cpu::matmul::rows::OutPart;
use crate::cpu::matmul::stored_params::params_of_lanes;

/// Bytes of inputs that stay in the first cache while weights pass through it.
const NEAR_INPUTS: usize = 24 << 10;

/// Columns of longer rows that sixteen of these meet before they go on to the next ones.
const PIECE: usize = 8192;

/// Groups of a row whose dots are kept between the two halves: 8 KiB for sixteen rows.
const KEPT: usize = 128;

/// Groups of a row that the second half takes at a time.
const EIGHT: usize = 8;

/// What a call needs besides its arguments.
#[derive(Default)]
struct Scratch {
    /// What `x` holds.
    of: Option<Key>,
    x: Repeated,
    dots: Vec<f32>,
}

#[derive(PartialEq, Eq)]
struct Key {
    quantised: u64,
    x_row: usize,
    codes: usize,
    group: usize,
}

thread_local! {
    /// Kept from call to call: small matrices are as quick as an allocation, and the matrices of a
    /// layer multiply the same row.
    static SCRATCH: Cell<Scratch> = Cell::default();
}

impl Scratch {
    #[inline]
    #[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
    fn take_row<const CODES: usize, const GROUP: usize>(
        &mut self,
        product: &IntegerProduct<'_>,
        x_row: usize,
    ) {
        let key = Key { quantised: product.x.id(), x_row, codes: CODES, group: GROUP };
        if self.of.as_ref() == Some(&key) {
            return;
        }
        repeat::<CODES, GROUP>(product.x, x_row, &mut self.x);
        self.of = Some(key);
    }
}

/// The outputs of `rows` for the `i`-th row of the activations.
#[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
pub(super) fn integer_row<const CODES: usize, const GROUP: usize>(
    product: IntegerProduct<'_>,
    rows: Range<usize>,
    i: usize,
    out: &mut OutPart<'_>,
) {
    prefetch_first(&product, rows.clone());
    let x_row = product.x_rows.at(i);
    let mut scratch = SCRATCH.take();
    scratch.take_row::<CODES, GROUP>(&product, x_row);
    let n_groups = product.n_groups();
    let suits = (EIGHT..=KEPT).contains(&n_groups)
        && is_near(&product)
        && product.integers.params.scale_bytes() < Float::F32.bytes();
    let n_whole = if suits { rows.len() / ROWS * ROWS } else { 0 };
    let whole = rows.start..rows.start + n_whole;
    let rest = whole.end..rows.end;
    let task = Task { product: &product, x_row, i };
    let Scratch { x, dots, .. } = &mut scratch;
    match product.x.n_limbs() {
        1 => task.whole_blocks::<CODES, GROUP, 1>(whole, x, dots, out),
        _ => task.whole_blocks::<CODES, GROUP, 2>(whole, x, dots, out),
    }
    task.blocks::<CODES, GROUP>(rest, x, dots, out);
    SCRATCH.set(scratch);
}

fn is_near(product: &IntegerProduct<'_>) -> bool {
    product.x.cols() * product.x.n_limbs() <= NEAR_INPUTS
}

/// Prefetches what the first rows read, while their activations are reordered.
#[inline]
#[target_feature(enable = "sse")]
fn prefetch_first(product: &IntegerProduct<'_>, rows: Range<usize>) {
    let packed = product.weight_rows(rows.clone());
    prefetch_all(&packed[..packed.len().min(DISTANCE)]);
    let row_bytes = product.n_groups() * product.integers.params.scale_bytes();
    let params = rows.start * row_bytes..rows.end.min(rows.start + ROWS) * row_bytes;
    prefetch_all(&product.weight.scales[params.clone()]);
    prefetch_all(product.weight.biases.get(params).unwrap_or(&[]));
}

/// What one call computes.
struct Task<'a> {
    product: &'a IntegerProduct<'a>,
    x_row: usize,
    /// Which row of the output.
    i: usize,
}

impl Task<'_> {
    /// Sixteen rows at a time, whose dots are added while the next are read.
    #[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
    fn whole_blocks<const CODES: usize, const GROUP: usize, const LIMBS: usize>(
        &self,
        rows: Range<usize>,
        x: &Repeated,
        dots: &mut Vec<f32>,
        out: &mut OutPart<'_>,
    ) {
        let product = self.product;
        let n = product.n_groups();
        dots.resize(2 * n * ROWS, 0.0);
        let (mut now, mut before) = dots.split_at_mut(n * ROWS);
        let mut last: Option<Sums<'_>> = None;
        for row in rows.step_by(ROWS) {
            let block = row..row + ROWS;
            let packed = product.weight_rows(block.clone());
            let mut steps =
                Steps::<CODES, GROUP, LIMBS>::new(x, 0, param_prefetch(product, row, 0, DISTANCE));
            let packed = packed.chunks_exact(step_bytes(width(CODES), GROUP));
            // Sixteen rows are as many steps as a row has groups.
            for (step, (packed, dots)) in packed.zip(now.as_chunks_mut().0).enumerate() {
                steps.step(packed, dots);
                if let Some(sums) = &mut last
                    && step % EIGHT == 0
                {
                    sums.add_next(before, step);
                }
            }
            if let Some(sums) = last.replace(Sums::new(product, block, self.x_row)) {
                out.put(self.i, sums.rows.start, &sums.total());
            }
            std::mem::swap(&mut now, &mut before);
        }
        if let Some(mut sums) = last {
            for first in (0..n).step_by(EIGHT) {
                sums.add_next(before, first);
            }
            out.put(self.i, sums.rows.start, &sums.total());
        }
    }

    /// Any rows of any shape.
    #[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
    fn blocks<const CODES: usize, const GROUP: usize>(
        &self,
        rows: Range<usize>,
        x: &Repeated,
        dots: &mut Vec<f32>,
        out: &mut OutPart<'_>,
    ) {
        let product = self.product;
        let n_groups = product.n_groups();
        let is_near = is_near(product);
        let n_kept = if is_near { n_groups } else { PIECE / GROUP };
        dots.resize(n_kept * ROWS, 0.0);
        for row in rows.clone().step_by(ROWS) {
            let block = row..rows.end.min(row + ROWS);
            let mut sums = Sums::new(product, block.clone(), self.x_row);
            if is_near {
                let packed = product.weight_rows(block.clone());
                group_dots::<CODES, GROUP>(
                    packed,
                    x,
                    0,
                    param_prefetch(product, row, 0, DISTANCE),
                    dots,
                );
                sums.add_all(dots);
            } else {
                for first in (0..n_groups).step_by(n_kept) {
                    let groups = first..n_groups.min(first + n_kept);
                    dots_by_row::<CODES, GROUP>(product, block.clone(), x, groups.clone(), dots);
                    sums.add(dots, groups);
                }
            }
            out.put(self.i, row, &sums.total()[..block.len()]);
        }
    }
}

/// The dots of some groups of each row, (rows, groups).
#[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
fn dots_by_row<const CODES: usize, const GROUP: usize>(
    product: &IntegerProduct<'_>,
    rows: Range<usize>,
    x: &Repeated,
    groups: Range<usize>,
    dots: &mut [f32],
) {
    let group_bytes = GROUP * width(CODES) / 8;
    for (row, dots) in rows.zip(dots.chunks_exact_mut(groups.len())) {
        let packed = product.weight_rows(row..row + 1);
        let packed = &packed[groups.start * group_bytes..groups.end * group_bytes];
        // The same columns of a row that is as far ahead as bytes are elsewhere.
        let n_rows = DISTANCE.div_ceil(groups.len() * group_bytes);
        let distance = n_rows * product.n_groups() * group_bytes;
        let param_prefetch = param_prefetch(product, row, groups.start, distance);
        group_dots::<CODES, GROUP>(packed, x, groups.start, param_prefetch, dots);
    }
}

/// The parameters that follow those of group `group` of `row` by a block.
fn param_prefetch<'a>(
    product: &IntegerProduct<'a>,
    row: usize,
    group: usize,
    distance: usize,
) -> ParamPrefetch<'a> {
    let size = product.integers.params.scale_bytes();
    let at = ((row + ROWS) * product.n_groups() + group) * size;
    let MatrixView { scales, biases, .. } = product.weight;
    // A prefetch of an unmapped page would cost a walk of the page table.
    let biases = if product.integers.params.has_biases() { biases } else { scales };
    ParamPrefetch { scales, biases, step: GROUPS * size, at, distance }
}

/// The two accumulators of sixteen outputs.
pub(super) struct Sums<'a> {
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
    pub(super) fn new(product: &'a IntegerProduct<'a>, rows: Range<usize>, x_row: usize) -> Self {
        let (s, st) = (product.x.s(x_row), product.x.st(x_row));
        let zero = _mm512_setzero_ps();
        Sums { product, rows, s, st, acc: zero, off: zero }
    }

    /// Adds all groups of each row, of which these are the dots: (rows, groups).
    #[inline]
    #[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
    fn add_all(&mut self, dots: &[f32]) {
        match self.product.n_groups() {
            1 if self.rows.len() == ROWS => self.add_narrow::<1>(dots),
            2 if self.rows.len() == ROWS => self.add_narrow::<2>(dots),
            4 if self.rows.len() == ROWS => self.add_narrow::<4>(dots),
            8 if self.rows.len() == ROWS => self.add_narrow::<8>(dots),
            n => self.add(dots, 0..n),
        }
    }

    /// Adds up to eight groups from `first` on of each of sixteen rows, whose dots are `dots`:
    /// (rows, groups), of which there are eight at least.
    #[inline]
    #[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
    fn add_next(&mut self, dots: &[f32], first: usize) {
        let from = first.min(self.product.n_groups() - EIGHT);
        self.add_eight(dots, from, first - from);
    }

    /// Adds eight groups from `first` on, without the `added` ones before. Parameters have 16 bits
    /// or 8.
    #[inline]
    #[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
    fn add_eight(&mut self, dots: &[f32], first: usize, added: usize) {
        let n = self.product.n_groups();
        let format = self.product.integers.params;
        let params = self.params_of_eight(first);
        let dots: &[u8] = bytemuck::cast_slice(&dots[first..]);
        let (s, st) = (&self.s[first..first + EIGHT], &self.st[first..first + EIGHT]);
        for half in 0..2 {
            let mut tile = [_mm512_setzero_si512(); 4];
            for (i, it) in tile.iter_mut().enumerate() {
                *it = load_lanes(&dots[4 * i * n + 16 * half..], 16 * n);
            }
            let tile = transpose_lanes(tile);
            for g in 0..4 {
                if 4 * half + g < added {
                    continue;
                }
                let params = params_of_lanes(Zmm::new(), format, params[4 * half + g]);
                self.add_group(tile[g], params, s[4 * half + g], st[4 * half + g]);
            }
        }
    }

    /// As they are stored, those of eight groups from `first` on; lanes are rows. Where there are no
    /// biases the upper halves of lanes are zero.
    #[inline]
    #[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
    fn params_of_eight(&self, first: usize) -> [__m512i; EIGHT] {
        let n = self.product.n_groups();
        let MatrixView { scales, biases, .. } = self.product.weight;
        let at = self.rows.start * n + first;
        if let ParamFormat::OfE2M1(_) = self.product.integers.params {
            return eight_bytes(&scales[at..], n);
        }
        let has_biases = self.product.integers.params.has_biases();
        let scales = &scales[2 * at..];
        let biases = if has_biases { &biases[2 * at..] } else { biases };
        // Lanes of 128 bits: row i, i + 4, i + 8 and i + 12.
        let (mut low, mut high) = ([_mm512_setzero_si512(); 4], [_mm512_setzero_si512(); 4]);
        for i in 0..4 {
            let scales = load_lanes(&scales[2 * i * n..], 8 * n);
            let biases = if has_biases {
                load_lanes(&biases[2 * i * n..], 8 * n)
            } else {
                _mm512_setzero_si512()
            };
            low[i] = _mm512_unpacklo_epi16(scales, biases);
            high[i] = _mm512_unpackhi_epi16(scales, biases);
        }
        let ([a, b, c, d], [e, f, g, h]) = (transpose_lanes(low), transpose_lanes(high));
        [a, b, c, d, e, f, g, h]
    }

    /// Adds the `N` groups of each of sixteen rows.
    #[inline]
    #[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
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
    fn add_group(&mut self, d: __m512i, [scale, bias]: [__m512; 2], s: f32, st: f32) {
        let scale = _mm512_mul_ps(scale, _mm512_set1_ps(s));
        self.acc = _mm512_fmadd_ps(_mm512_castsi512_ps(d), scale, self.acc);
        self.off = _mm512_fmadd_ps(bias, _mm512_set1_ps(st), self.off);
    }

    /// Adds some groups of each row, of which these are the dots: (rows, groups).
    #[inline]
    #[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
    pub(super) fn add(&mut self, dots: &[f32], groups: Range<usize>) {
        for first in (0..groups.len()).step_by(GROUPS) {
            let n = GROUPS.min(groups.len() - first);
            let at = groups.start + first;
            let params = param_tile(self.product, self.rows.clone(), at);
            let dots = self.dot_tile(dots, groups.len(), first..first + n);
            let (s, st) = (&self.s[at..at + n], &self.st[at..at + n]);
            for (g, (s, st)) in s.iter().zip(st).enumerate() {
                self.add_group(dots[g], [params.scale[g], params.bias[g]], *s, *st);
            }
        }
    }

    /// Adds group `g`, whose dots are `d`; groups come in ascending order.
    #[inline]
    #[target_feature(enable = "avx512f,fma")]
    pub(super) fn add_next_group(&mut self, g: usize, d: __m512i, params: [__m512; 2]) {
        self.add_group(d, params, self.s[g], self.st[g]);
    }

    /// Some columns of `dots`, (rows, n_cols); lanes are rows.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2")]
    pub(super) fn dot_tile(
        &self,
        dots: &[f32],
        n_cols: usize,
        cols: Range<usize>,
    ) -> [__m512i; GROUPS] {
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
    pub(super) fn total(&self) -> [f32; ROWS] {
        let mut out = [0.0; ROWS];
        store_floats(&mut out, _mm512_add_ps(self.acc, self.off));
        out
    }
}
