//! Columns of a matrix unpacked into tiles.

use std::arch::x86_64::*;
use std::ops::Range;

use super::order::{COLS, is_natural};
use super::tiles::ROWS;
use crate::cpu::matmul::avx512::unpack::{unpack, unpack_part};
use crate::cpu::matmul::avx512::vector::{load_16, load_32, store_64};
use crate::cpu::matmul::integers::width;
use crate::cpu::matmul::product::IntegerProduct;

/// The tiles of some columns of at most sixteen rows; rows beyond the last
/// repeat it.
#[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
pub(super) fn unpack_tiles<const CODES: usize, const GROUP: usize>(
    product: &IntegerProduct<'_>,
    rows: Range<usize>,
    cols: Range<usize>,
    out: &mut [u8],
) {
    let row_bytes = product.row_bytes();
    let packed = product.weight_rows(rows.clone());
    for r in 0..ROWS {
        let start = r.min(rows.len() - 1) * row_bytes + cols.start * width(CODES) / 8;
        let packed = &packed[start..][..cols.len() * width(CODES) / 8];
        if GROUP >= COLS {
            let (out, _) = out.as_chunks_mut::<{ COLS * ROWS }>();
            for (out, packed) in out.iter_mut().zip(packed.chunks_exact(COLS * width(CODES) / 8)) {
                store_64(&mut out[r * COLS..], unpack_ordered::<CODES, GROUP>(packed));
            }
            continue;
        }
        for (out, packed) in out.chunks_mut(COLS * ROWS).zip(packed.chunks(COLS * width(CODES) / 8))
        {
            let is_whole = packed.len() == COLS * width(CODES) / 8;
            let two = if is_whole { unpack::<CODES>(packed) } else { unpack_part::<CODES>(packed) };
            let mut unpacked = [0; COLS];
            store_64(&mut unpacked, two);
            for (tile, part) in out.chunks_mut(GROUP * ROWS).zip(unpacked.chunks(GROUP)) {
                tile[r * GROUP..][..GROUP].copy_from_slice(part);
            }
        }
    }
}

/// 64 columns in the order of [`order`].
#[inline]
#[target_feature(enable = "avx512vl,avx512dq,avx512vnni,avx512vbmi")]
fn unpack_ordered<const CODES: usize, const GROUP: usize>(packed: &[u8]) -> __m512i {
    if is_natural(width(CODES), GROUP) {
        return unpack::<CODES>(packed);
    }
    let (bytes, shifts) = match CODES {
        4 => (_mm512_broadcast_i64x4(load_32(packed)), _mm512_setr_epi64(0, 0, 0, 0, 4, 4, 4, 4)),
        _ => (_mm512_broadcast_i32x4(load_16(packed)), _mm512_setr_epi64(0, 0, 2, 2, 4, 4, 6, 6)),
    };
    let mask = _mm512_set1_epi8(((1u32 << width(CODES)) - 1) as i8);
    _mm512_and_si512(_mm512_srlv_epi64(bytes, shifts), mask)
}
