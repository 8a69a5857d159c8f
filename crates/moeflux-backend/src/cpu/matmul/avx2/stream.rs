//! Few rows of activations: the speed of memory is the limit.
//!
//! The integers of a matrix are one stream of groups, row after row. Eight rows
//! of it are read in the order of memory and their dots stored; then the dots
//! are transposed, and the chains of `fma` run with the rows as lanes.

use std::arch::x86_64::*;
use std::ops::Range;

use moeflux_core::quant::MatrixView;

use super::dots::{GROUPS, SLACK, eight_dots, step_bytes};
use super::order::{Ordered, Scratch};
use super::params::{ParamTile, Place};
use super::vector::{ROWS, load_floats, store_floats, transpose};
use crate::cpu::matmul::integers::width;
use crate::cpu::matmul::product::IntegerProduct;
use crate::cpu::matmul::rows::OutPart;

/// Rows of activations at most: with more, unpacking once pays.
pub(super) const X_ROWS: usize = 4;

/// The outputs of `rows` for all rows of the activations.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn integer_rows<const CODES: usize, const GROUP: usize, const VNNI: bool>(
    product: IntegerProduct<'_>,
    rows: Range<usize>,
    out: &mut OutPart<'_>,
) {
    let (n, n_groups) = (product.x_rows.len(), product.n_groups());
    assert!(n <= X_ROWS, "{n} rows of activations");
    let mut scratch = Scratch::take();
    let mut places = [0; X_ROWS];
    let mut scales = [Scales::default(); X_ROWS];
    for (i, scales) in scales[..n].iter_mut().enumerate() {
        let (x, x_row) = (product.x, product.x_rows.at(i));
        let (held, rest) = places.split_at_mut(i);
        rest[0] = scratch.order::<CODES>(x, x_row, held);
        *scales = Scales { s: x.s(x_row), st: x.st(x_row) };
    }
    // Tiles may read beyond the last dot.
    let n_dots = ROWS * n_groups + GROUPS;
    if scratch.dots.len() < n * n_dots {
        scratch.dots.resize(n * n_dots, 0.0);
    }
    for row in rows.clone().step_by(ROWS) {
        let block = row..rows.end.min(row + ROWS);
        for (i, at) in places[..n].iter().enumerate() {
            let (x, dots) = scratch.row_and_dots(*at);
            let dots = &mut dots[i * n_dots..][..n_dots];
            block_dots::<CODES, GROUP, VNNI>(&product, block.clone(), x, dots);
        }
        let dots = &scratch.dots[..n * n_dots];
        let mut sums = [Sums::zero(); X_ROWS];
        add_groups(&product, block.clone(), dots, &scales[..n], &mut sums[..n]);
        for (i, it) in sums[..n].iter().enumerate() {
            out.put(i, row, &it.total()[..block.len()]);
        }
    }
    scratch.keep();
}

/// Bytes that packed weights are prefetched ahead of their use.
const DISTANCE: usize = 8192;

/// Prefetches a line into the second-level cache; it need not exist.
#[inline]
#[target_feature(enable = "sse")]
pub(super) fn prefetch(bytes: &[u8], at: usize) {
    _mm_prefetch::<_MM_HINT_T1>(bytes.as_ptr().wrapping_add(at).cast());
}

/// Prefetches the parameters of eight rows from `row` on, while the rows before
/// them are at these groups.
#[inline]
#[target_feature(enable = "sse")]
pub(super) fn prefetch_params(product: &IntegerProduct<'_>, row: usize, groups: Range<usize>) {
    let size = product.integers.params.scale_bytes();
    let MatrixView { scales, biases, .. } = product.weight;
    let first = (row * product.n_groups() + groups.start * ROWS) * size;
    for line in (0..groups.len() * ROWS * size).step_by(64) {
        prefetch(scales, first + line);
        if product.integers.params.has_biases() {
            prefetch(biases, first + line);
        }
    }
}

/// The dots of all groups of at most eight rows, (rows, groups).
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn block_dots<const CODES: usize, const GROUP: usize, const VNNI: bool>(
    product: &IntegerProduct<'_>,
    rows: Range<usize>,
    x: &Ordered,
    dots: &mut [f32],
) {
    let step_bytes = const { step_bytes(width(CODES), GROUP) };
    let n_groups = rows.len() * product.n_groups();
    let n_steps = n_groups.div_ceil(GROUPS);
    let row_bytes = product.row_bytes();
    let packed = &product.weight.weight[rows.start * row_bytes..];
    // All steps but those at the end of the matrix may read on.
    let n_inside = (packed.len().saturating_sub(SLACK) / step_bytes).min(n_steps);
    let period = x.period();
    let (mut col, step_cols) = (0, GROUPS * GROUP % period);
    let (dots, _) = dots.as_chunks_mut::<GROUPS>();
    for (i, out) in dots[..n_inside].iter_mut().enumerate() {
        let packed = &packed[i * step_bytes..];
        for line in (0..step_bytes).step_by(64) {
            prefetch(packed, DISTANCE + line);
        }
        let x = x.part(col, GROUPS * GROUP);
        let sums = eight_dots::<CODES, GROUP, VNNI>(packed, x);
        store_floats(out, _mm256_cvtepi32_ps(sums));
        col += step_cols;
        if col >= period {
            col -= period;
        }
    }
    for (i, out) in dots[..n_steps].iter_mut().enumerate().skip(n_inside) {
        let mut padded = [0u8; GROUPS * 128 + SLACK];
        let rest = &packed[i * step_bytes..];
        let n = rest.len().min(step_bytes);
        padded[..n].copy_from_slice(&rest[..n]);
        let x = x.part(i * GROUPS * GROUP % period, GROUPS * GROUP);
        let sums = eight_dots::<CODES, GROUP, VNNI>(&padded[..step_bytes + SLACK], x);
        store_floats(out, _mm256_cvtepi32_ps(sums));
    }
}

/// The two accumulators of eight outputs.
#[derive(Clone, Copy)]
pub(super) struct Sums {
    pub(super) acc: __m256,
    pub(super) off: __m256,
}

impl Sums {
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn zero() -> Sums {
        Sums { acc: _mm256_setzero_ps(), off: _mm256_setzero_ps() }
    }

    /// With another group.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn with(self, dots: __m256, scale: __m256, bias: __m256, s: f32, st: f32) -> Sums {
        let scale = _mm256_mul_ps(scale, _mm256_set1_ps(s));
        let acc = _mm256_fmadd_ps(dots, scale, self.acc);
        Sums { acc, off: _mm256_fmadd_ps(bias, _mm256_set1_ps(st), self.off) }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn total(&self) -> [f32; ROWS] {
        let mut out = [0.0; ROWS];
        store_floats(&mut out, _mm256_add_ps(self.acc, self.off));
        out
    }
}

/// The scales of one row of the activations, and scales times sums.
#[derive(Clone, Copy, Default)]
pub(super) struct Scales<'a> {
    pub(super) s: &'a [f32],
    pub(super) st: &'a [f32],
}

/// Adds all groups of each row; `dots` are (rows of activations, rows, groups)
/// with room for a tile at the end of each.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn add_groups(
    product: &IntegerProduct<'_>,
    rows: Range<usize>,
    dots: &[f32],
    x: &[Scales<'_>],
    sums: &mut [Sums],
) {
    let n_groups = product.n_groups();
    let mut params = ParamTile::zero();
    for group in (0..n_groups).step_by(GROUPS) {
        let place = Place { rows: rows.clone(), group, n_groups };
        prefetch_params(product, rows.end, group..n_groups.min(group + GROUPS));
        params.load(&product.weight, product.integers.params, &place);
        let x_dots = dots.chunks_exact(ROWS * n_groups + GROUPS);
        for ((dots, x), sums) in x_dots.zip(x).zip(sums.iter_mut()) {
            let mut tile = [_mm256_setzero_ps(); ROWS];
            for (r, it) in tile.iter_mut().enumerate() {
                let dots = &dots[r * n_groups + group..];
                *it = load_floats(dots.first_chunk().expect("room for a tile"));
            }
            let tile = transpose(tile);
            let (s, st) = (&x.s[group..], &x.st[group..]);
            // A copy whose address is not taken stays in registers.
            let mut now = *sums;
            match (s.first_chunk::<GROUPS>(), st.first_chunk::<GROUPS>()) {
                (Some(s), Some(st)) => {
                    for g in 0..GROUPS {
                        now = now.with(tile[g], params.scale[g], params.bias[g], s[g], st[g]);
                    }
                }
                _ => {
                    for (g, (s, st)) in s.iter().zip(st).enumerate() {
                        now = now.with(tile[g], params.scale[g], params.bias[g], *s, *st);
                    }
                }
            }
            *sums = now;
        }
    }
}
