//! Four columns of four rows to a vector: one dot product multiplies them with
//! four columns of one row of activations, and the rows are the lanes.

use std::arch::aarch64::*;
use std::ops::Range;

use crate::cpu::matmul::integers::{E2M1, width};
use crate::cpu::matmul::neon::levels::Dotprod;
use crate::cpu::matmul::neon::limbs::both_limbs;
use crate::cpu::matmul::neon::piece::{Input, Inputs, Piece, ROWS, Sums};
use crate::cpu::matmul::neon::unpack::unpack_32;
use crate::cpu::matmul::neon::vector::{load_bytes, load_signed, store_bytes, transpose_quads};

/// Vectors of sixteen columns of eight rows.
const STEP: usize = 8;
/// Rows of activations that are multiplied together.
const X_ROWS: usize = 4;

#[target_feature(enable = "neon")]
pub(in super::super) fn load(piece: &mut Piece, packed: [&[u8]; ROWS], codes: usize) {
    match codes {
        2 => load_codes::<2>(piece, packed),
        3 => load_codes::<3>(piece, packed),
        4 => load_codes::<4>(piece, packed),
        5 => load_codes::<5>(piece, packed),
        6 => load_codes::<6>(piece, packed),
        E2M1 => load_codes::<E2M1>(piece, packed),
        _ => load_codes::<8>(piece, packed),
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn load_codes<const CODES: usize>(piece: &mut Piece, packed: [&[u8]; ROWS]) {
    let steps = piece.q.as_chunks_mut::<{ 2 * STEP }>().0;
    let n = packed[0].len() / (4 * width(CODES));
    for (i, out) in steps.iter_mut().enumerate().take(n) {
        for half in 0..2 {
            let row = |r: usize| {
                let both = unpack_32::<CODES>(
                    &packed[4 * half + r][4 * width(CODES) * i..][..4 * width(CODES)],
                );
                if CODES == 8 { both.map(|codes| veorq_u8(codes, vdupq_n_u8(0x80))) } else { both }
            };
            let [a, b, c, d] = [row(0), row(1), row(2), row(3)];
            for step in 0..2 {
                let quads = transpose_quads([a[step], b[step], c[step], d[step]]);
                for (k, it) in quads.into_iter().enumerate() {
                    store_bytes(&mut out[STEP * step + 2 * k + half], it);
                }
            }
        }
    }
}

#[target_feature(enable = "neon")]
pub(in super::super) fn multiply(
    isa: Dotprod,
    piece: &Piece,
    inputs: &Inputs<'_>,
    groups: Range<usize>,
    sums: &mut [Sums],
) {
    let mut i = 0;
    let (blocks, rest) = sums.as_chunks_mut::<X_ROWS>();
    for sums in blocks {
        match inputs.n_limbs() {
            1 => multiply_rows::<X_ROWS, 1>(isa, piece, inputs, groups.clone(), i, sums),
            _ => multiply_rows::<X_ROWS, 2>(isa, piece, inputs, groups.clone(), i, sums),
        }
        i += X_ROWS;
    }
    for sums in rest.as_chunks_mut::<1>().0 {
        match inputs.n_limbs() {
            1 => multiply_rows::<1, 1>(isa, piece, inputs, groups.clone(), i, sums),
            _ => multiply_rows::<1, 2>(isa, piece, inputs, groups.clone(), i, sums),
        }
        i += 1;
    }
}

/// Rows `first..first + T` of the activations.
#[inline]
#[target_feature(enable = "neon")]
fn multiply_rows<const T: usize, const LIMBS: usize>(
    isa: Dotprod,
    piece: &Piece,
    inputs: &Inputs<'_>,
    groups: Range<usize>,
    first: usize,
    sums: &mut [Sums; T],
) {
    let rows: &[Input<'_>; T] = inputs.rows[first..].first_chunk().expect("a row for each sum");
    let n = inputs.group_size / 16;
    let q = piece.q.as_chunks::<STEP>().0.chunks_exact(n);
    for (g, (group, q)) in groups.zip(q).enumerate() {
        let x: [[&[_]; LIMBS]; T] = std::array::from_fn(|t| {
            std::array::from_fn(|limb| {
                &rows[t].limbs[limb].as_chunks::<16>().0[group * n..(group + 1) * n]
            })
        });
        let mut dots = [[[vdupq_n_s32(0); 2]; LIMBS]; T];
        for (t, dots) in dots.iter_mut().enumerate() {
            dots[LIMBS - 1] = [vdupq_n_s32(inputs.missing(first + t, group)); 2];
        }
        for (step, q) in q.iter().enumerate() {
            let q = q.each_ref().map(|codes| load_bytes(codes));
            for t in 0..T {
                for limb in 0..LIMBS {
                    let x = load_signed(&x[t][limb][step]);
                    let [mut a, mut b] = dots[t][limb];
                    a = isa.dot_lane::<0>(a, q[0], x);
                    b = isa.dot_lane::<0>(b, q[1], x);
                    a = isa.dot_lane::<1>(a, q[2], x);
                    b = isa.dot_lane::<1>(b, q[3], x);
                    a = isa.dot_lane::<2>(a, q[4], x);
                    b = isa.dot_lane::<2>(b, q[5], x);
                    a = isa.dot_lane::<3>(a, q[6], x);
                    b = isa.dot_lane::<3>(b, q[7], x);
                    dots[t][limb] = [a, b];
                }
            }
        }
        for t in 0..T {
            let low = dots[t][LIMBS - 1];
            let dots = if LIMBS == 1 {
                low
            } else {
                [both_limbs(dots[t][0][0], low[0]), both_limbs(dots[t][0][1], low[1])]
            };
            sums[t].end_group(dots, &piece.params, g, rows[t].s[group], rows[t].st[group]);
        }
    }
}
