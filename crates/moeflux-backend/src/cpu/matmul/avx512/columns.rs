//! Packed columns of sixteen rows as lines of four columns.

use std::arch::x86_64::*;
use std::ops::Range;

use super::transpose::{transpose, transpose_halves};
use super::unpack::{COLS, look_up, unpack, unpack_part};
use super::vector::{ROWS, load_32, store_64};
use crate::cpu::matmul::integers::width;
use crate::cpu::matmul::product::IntegerProduct;
use crate::cpu::vector::Line;

/// Each line of `out` gets four columns of at most sixteen rows; rows beyond
/// the last repeat it.
#[inline]
#[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
pub(super) fn unpack_tile<const CODES: usize>(
    product: &IntegerProduct<'_>,
    rows: Range<usize>,
    cols: Range<usize>,
    out: &mut [Line],
) {
    let row_bytes = product.row_bytes();
    let packed = product.weight_rows(rows.clone());
    for (col, out) in cols.clone().step_by(COLS).zip(out.chunks_mut(COLS / 4)) {
        let n_bytes = COLS.min(cols.end - col) * width(CODES) / 8;
        if width(CODES) == 4 && n_bytes == 32 {
            let mut nibbles = [_mm256_setzero_si256(); ROWS];
            for (r, it) in nibbles.iter_mut().enumerate() {
                *it = load_32(&packed[r.min(rows.len() - 1) * row_bytes + col / 2..]);
            }
            spread_nibbles::<CODES>(transpose_halves(nibbles), out);
            continue;
        }
        let mut vectors = [_mm512_setzero_si512(); ROWS];
        for (r, it) in vectors.iter_mut().enumerate() {
            let start = r.min(rows.len() - 1) * row_bytes + col * width(CODES) / 8;
            let bytes = &packed[start..start + n_bytes];
            let is_whole = n_bytes == 8 * width(CODES);
            *it = if is_whole { unpack::<CODES>(bytes) } else { unpack_part::<CODES>(bytes) };
        }
        for (out, it) in out.iter_mut().zip(transpose(vectors)) {
            store_64(bytemuck::cast_slice_mut(&mut out.0), it);
        }
    }
}

/// Lines of 64 columns, from vectors that hold eight of each row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn spread_nibbles<const CODES: usize>(eights: [__m512i; 8], out: &mut [Line]) {
    // Bits of a row's columns in a 64-bit lane, which two rows share.
    let first = _mm512_set1_epi64(0x2c28_2420_0c08_0400);
    let second = _mm512_set1_epi64(0x3c38_3430_1c18_1410);
    let mask = _mm512_set1_epi8(15);
    for (out, eight) in out.as_chunks_mut::<2>().0.iter_mut().zip(eights) {
        for (out, places) in out.iter_mut().zip([first, second]) {
            let four = _mm512_multishift_epi64_epi8(places, eight);
            let four = look_up::<CODES>(_mm512_and_si512(four, mask));
            store_64(bytemuck::cast_slice_mut(&mut out.0), four);
        }
    }
}
