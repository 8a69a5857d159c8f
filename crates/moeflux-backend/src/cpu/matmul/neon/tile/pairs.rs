//! Eight columns of two rows to a vector: one matrix product multiplies them
//! with eight columns of two rows of activations.

use std::arch::aarch64::*;
use std::ops::Range;

use crate::cpu::matmul::integers::{E2M1, width};
use crate::cpu::matmul::neon::levels::I8mm;
use crate::cpu::matmul::neon::limbs::{both_limbs, halves};
use crate::cpu::matmul::neon::piece::{Inputs, Piece, ROWS, Sums};
use crate::cpu::matmul::neon::unpack::unpack_32;
use crate::cpu::matmul::neon::vector::{
    load_bytes, load_signed, store_bytes, store_signed, zip_high, zip_low,
};

/// Vectors of eight columns of eight rows.
const STEP: usize = 4;

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
    let steps = piece.q.as_chunks_mut::<{ 4 * STEP }>().0;
    let n = packed[0].len() / (4 * width(CODES));
    for (i, out) in steps.iter_mut().enumerate().take(n) {
        for (pair, rows) in packed.as_chunks::<2>().0.iter().enumerate() {
            let [a, b] = rows
                .map(|row| unpack_32::<CODES>(&row[4 * width(CODES) * i..][..4 * width(CODES)]));
            store_bytes(&mut out[pair], zip_low(a[0], b[0]));
            store_bytes(&mut out[STEP + pair], zip_high(a[0], b[0]));
            store_bytes(&mut out[2 * STEP + pair], zip_low(a[1], b[1]));
            store_bytes(&mut out[3 * STEP + pair], zip_high(a[1], b[1]));
        }
    }
}

/// (pairs of rows, limbs, eights of columns); a row alone is paired with
/// itself.
#[target_feature(enable = "neon")]
pub(in super::super) fn prepack(inputs: &mut Inputs<'_>) {
    let Inputs { rows, prepacked, .. } = inputs;
    prepacked.clear();
    for pair in rows.chunks(2) {
        let (a, b) = (&pair[0], &pair[pair.len() - 1]);
        for (a, b) in a.limbs.iter().zip(&b.limbs).take(a.n_limbs) {
            let chunks = a.as_chunks::<16>().0.iter().zip(b.as_chunks::<16>().0);
            let start = prepacked.len();
            prepacked.resize(start + a.len() / 8, [0; 16]);
            let out = prepacked[start..].as_chunks_mut::<2>().0;
            for (out, (a, b)) in out.iter_mut().zip(chunks) {
                for (out, it) in out.iter_mut().zip(halves(load_signed(a), load_signed(b))) {
                    store_signed(out, it);
                }
            }
        }
    }
}

#[target_feature(enable = "neon")]
pub(in super::super) fn multiply(
    isa: I8mm,
    piece: &Piece,
    inputs: &Inputs<'_>,
    groups: Range<usize>,
    sums: &mut [Sums],
) {
    let mut i = 0;
    for sums in sums.chunks_mut(4) {
        let groups = groups.clone();
        match (sums.len(), inputs.n_limbs()) {
            (1 | 2, 1) => multiply_rows::<1, 1>(isa, piece, inputs, groups, i, sums),
            (1 | 2, _) => multiply_rows::<1, 2>(isa, piece, inputs, groups, i, sums),
            (_, 1) => multiply_rows::<2, 1>(isa, piece, inputs, groups, i, sums),
            _ => multiply_rows::<2, 2>(isa, piece, inputs, groups, i, sums),
        }
        i += 4;
    }
}

/// `PAIRS` pairs of rows of the activations, from row `first` on.
#[inline]
#[target_feature(enable = "neon")]
fn multiply_rows<const PAIRS: usize, const LIMBS: usize>(
    isa: I8mm,
    piece: &Piece,
    inputs: &Inputs<'_>,
    groups: Range<usize>,
    first: usize,
    sums: &mut [Sums],
) {
    let n = inputs.group_size / 8;
    let row = n * inputs.n_groups;
    let q = piece.q.as_chunks::<STEP>().0.chunks_exact(n);
    for (g, (group, q)) in groups.zip(q).enumerate() {
        let x: [[&[_]; LIMBS]; PAIRS] = std::array::from_fn(|pair| {
            std::array::from_fn(|limb| {
                let start = ((first / 2 + pair) * LIMBS + limb) * row + group * n;
                &inputs.prepacked[start..start + n]
            })
        });
        let mut dots = [[[vdupq_n_s32(0); STEP]; LIMBS]; PAIRS];
        for (step, q) in q.iter().enumerate() {
            let q = q.each_ref().map(|codes| load_bytes(codes));
            for pair in 0..PAIRS {
                for limb in 0..LIMBS {
                    let x = load_signed(&x[pair][limb][step]);
                    for (dots, q) in dots[pair][limb].iter_mut().zip(q) {
                        *dots = isa.multiply_pairs(*dots, q, x);
                    }
                }
            }
        }
        let pairs = sums.chunks_mut(2).zip(inputs.rows[first..].chunks(2)).zip(dots);
        for ((sums, rows), dots) in pairs {
            let [a, b, c, d] = match dots[..] {
                [high, low] => std::array::from_fn(|i| both_limbs(high[i], low[i])),
                _ => dots[0],
            };
            let first = [vuzp1q_s32(a, b), vuzp1q_s32(c, d)];
            let second = [vuzp2q_s32(a, b), vuzp2q_s32(c, d)];
            for ((sums, row), dots) in sums.iter_mut().zip(rows).zip([first, second]) {
                sums.end_group(dots, &piece.params, g, row.s[group], row.st[group]);
            }
        }
    }
}
