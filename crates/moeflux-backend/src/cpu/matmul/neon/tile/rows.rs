//! Row by row, columns in natural order: for processors that multiply bytes
//! one by one.

use std::arch::aarch64::*;
use std::ops::Range;

use crate::cpu::matmul::integers::{E2M1, width};
use crate::cpu::matmul::neon::instructions::Instructions;
use crate::cpu::matmul::neon::levels::Plain;
use crate::cpu::matmul::neon::limbs::{Chunk, both_limbs};
use crate::cpu::matmul::neon::piece::{COLS, Inputs, Piece, ROWS, Sums};
use crate::cpu::matmul::neon::unpack::unpack_row;
use crate::cpu::matmul::neon::vector::load_bytes;

/// Vectors of one row.
const ROW: usize = COLS / 16;

#[target_feature(enable = "neon")]
pub(in super::super) fn load(piece: &mut Piece, packed: [&[u8]; ROWS], codes: usize) {
    let rows = piece.q.as_chunks_mut::<ROW>().0;
    for (out, packed) in rows.iter_mut().zip(packed) {
        let out = &mut out.as_flattened_mut()[..packed.len() * 8 / width(codes)];
        unpack_row(codes, packed, out);
        if codes == 8 {
            out.iter_mut().for_each(|byte| *byte ^= 0x80);
        }
    }
}

#[target_feature(enable = "neon")]
pub(in super::super) fn multiply(
    isa: Plain,
    piece: &Piece,
    inputs: &Inputs<'_>,
    groups: Range<usize>,
    sums: &mut [Sums],
) {
    // Only how many products fit into 16 bits depends on the width.
    match (piece.codes, inputs.group_size) {
        (8, 16) => each_row::<8, 16>(isa, piece, inputs, groups, sums),
        (8, 32) => each_row::<8, 32>(isa, piece, inputs, groups, sums),
        (8, 64) => each_row::<8, 64>(isa, piece, inputs, groups, sums),
        (8, _) => each_row::<8, 128>(isa, piece, inputs, groups, sums),
        (5 | 6 | E2M1, 32) => each_row::<6, 32>(isa, piece, inputs, groups, sums),
        (5 | 6, 64) => each_row::<6, 64>(isa, piece, inputs, groups, sums),
        (5 | 6, _) => each_row::<6, 128>(isa, piece, inputs, groups, sums),
        (_, 32) => each_row::<4, 32>(isa, piece, inputs, groups, sums),
        (_, 64) => each_row::<4, 64>(isa, piece, inputs, groups, sums),
        _ => each_row::<4, 128>(isa, piece, inputs, groups, sums),
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn each_row<const CODES: usize, const GROUP: usize>(
    isa: Plain,
    piece: &Piece,
    inputs: &Inputs<'_>,
    groups: Range<usize>,
    sums: &mut [Sums],
) {
    let rows: &[[[u8; 16]; ROW]; ROWS] =
        piece.q.as_chunks::<ROW>().0.try_into().expect("eight rows");
    for (i, (input, sums)) in inputs.rows.iter().zip(sums).enumerate() {
        let [high, low] = input.limbs.map(|limb| limb.as_chunks::<16>().0);
        for (g, group) in groups.clone().enumerate() {
            let chunks = group * GROUP / 16..(group + 1) * GROUP / 16;
            let (high, low) = (&high[chunks.clone()], &low[chunks]);
            let dot = |r: usize| {
                let mut q = [vdupq_n_u8(0); 8];
                for (q, it) in q.iter_mut().zip(&rows[r][g * GROUP / 16..][..GROUP / 16]) {
                    *q = load_bytes(it);
                }
                let limb =
                    |x: &[Chunk]| isa.dot_group::<CODES, GROUP, 1>(&q, x.as_chunks::<1>().0, 0);
                if input.n_limbs == 1 { limb(high) } else { both_limbs(limb(high), limb(low)) }
            };
            let four = |r| {
                let (a, b) = (vpaddq_s32(dot(r), dot(r + 1)), vpaddq_s32(dot(r + 2), dot(r + 3)));
                vaddq_s32(vpaddq_s32(a, b), vdupq_n_s32(inputs.missing(i, group)))
            };
            let dots = [four(0), four(4)];
            sums.end_group(dots, &piece.params, g, input.s[group], input.st[group]);
        }
    }
}
