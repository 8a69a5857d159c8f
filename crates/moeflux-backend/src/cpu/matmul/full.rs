//! The product in full precision: rows are decoded to `f32` piece by piece,
//! and each piece multiplies all rows of the activations.

use std::ops::Range;

use moeflux_core::quant::{Affine, Float, MatrixFormat, MatrixView, bf16_to_f32, unpack_group};

use super::FullProduct;
use super::jobs::OutPart;
use crate::cpu::Isa;
use crate::cpu::isa::{Level, for_every_isa};

/// Rows of the matrix that are decoded together.
const ROWS: usize = 4;
/// Columns that are decoded together: four rows of them fit into a quarter of
/// the first cache. A multiple of every group size.
const COLS: usize = 512;
/// Rows of the activations whose partial sums are kept together.
const X_ROWS: usize = 16;
const LANES: usize = 16;

/// The partial sums of one output.
type Partial = [f32; LANES];
/// The partial sums of one row of the activations with [`ROWS`] of the matrix.
type Partials = [Partial; ROWS];
/// Decoded columns of [`ROWS`] rows.
type Decoded = [[f32; COLS]; ROWS];

pub(super) fn full_rows(
    isa: Isa,
    product: FullProduct<'_>,
    rows: Range<usize>,
    mut out: OutPart<'_>,
) {
    let FullProduct { weight, x, x_rows } = product;
    let mut decoded: Decoded = [[0.0; COLS]; ROWS];
    for row in rows.clone().step_by(ROWS) {
        let n_rows = ROWS.min(rows.end - row);
        for first in (0..x_rows.len()).step_by(X_ROWS) {
            let n_x_rows = X_ROWS.min(x_rows.len() - first);
            let mut sums = [[[0f32; LANES]; ROWS]; X_ROWS];
            for col in (0..weight.cols).step_by(COLS) {
                let n_cols = COLS.min(weight.cols - col);
                for (r, it) in decoded[..n_rows].iter_mut().enumerate() {
                    decode(isa, &weight, row + r, col, &mut it[..n_cols]);
                }
                let piece = |i: usize| &x.row(x_rows.at(first + i))[col..col + n_cols];
                multiply(isa, &decoded, piece, &mut sums[..n_x_rows]);
            }
            for (i, sums) in sums[..n_x_rows].iter().enumerate() {
                let values = sums.map(add_tree);
                out.put(first + i, row, &values[..n_rows]);
            }
        }
    }
}

/// The sum of the lanes in the order of the contract.
fn add_tree(mut lanes: Partial) -> f32 {
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
    }
    lanes[0]
}

/// Adds the products of decoded columns with a piece of every row of `x`.
fn multiply<'x>(
    isa: Isa,
    w: &Decoded,
    x: impl Fn(usize) -> &'x [f32],
    sums: &mut [Partials],
) {
    let mut i = 0;
    if isa.level() > Level::Scalar {
        while i + 4 <= sums.len() {
            let (block, _) = sums[i..].as_chunks_mut();
            multiply_four(isa, w, &[x(i), x(i + 1), x(i + 2), x(i + 3)], &mut block[0]);
            i += 4;
        }
    }
    for (i, sums) in sums.iter_mut().enumerate().skip(i) {
        multiply_one(isa, w, x(i), sums);
    }
}

for_every_isa! {
    fn multiply_one(w: &Decoded, x: &[f32], sums: &mut Partials) {
        multiply_block(w, &[x], std::array::from_mut(sums));
    }
}

for_every_isa! {
    fn multiply_four(w: &Decoded, x: &[&[f32]; 4], sums: &mut [Partials; 4]) {
        multiply_block(w, x, sums);
    }
}

#[inline(always)]
fn multiply_block<const T: usize>(w: &Decoded, x: &[&[f32]; T], sums: &mut [Partials; T]) {
    let n_cols = x[0].len();
    assert!(n_cols <= COLS && x.iter().all(|it| it.len() == n_cols), "pieces of one length");
    let mut acc = *sums;
    for col in (0..n_cols / LANES * LANES).step_by(LANES) {
        for (x, acc) in x.iter().zip(&mut acc) {
            let x: &Partial = x[col..col + LANES].try_into().expect("sixteen columns");
            for (w, acc) in w.iter().zip(acc) {
                let w: &Partial = w[col..col + LANES].try_into().expect("sixteen columns");
                for lane in 0..LANES {
                    acc[lane] = w[lane].mul_add(x[lane], acc[lane]);
                }
            }
        }
    }
    // Only lanes that have a column: adding a zero product would turn -0 into 0.
    for col in n_cols / LANES * LANES..n_cols {
        for (x, acc) in x.iter().zip(&mut acc) {
            for (w, acc) in w.iter().zip(acc) {
                acc[col % LANES] = w[col].mul_add(x[col], acc[col % LANES]);
            }
        }
    }
    *sums = acc;
}

/// Elements `col..` of one row; `col` is a multiple of [`COLS`].
fn decode(isa: Isa, weight: &MatrixView<'_>, row: usize, col: usize, out: &mut [f32]) {
    let row_bytes = weight.format.row_bytes(weight.cols);
    let bytes = &weight.weight[row * row_bytes..(row + 1) * row_bytes];
    let bytes = &bytes[weight.format.row_bytes(col)..weight.format.row_bytes(col + out.len())];
    match weight.format {
        MatrixFormat::Dense(Float::F32) => decode_f32(isa, bytes, out),
        MatrixFormat::Dense(Float::F16) => decode_f16(isa, bytes, out),
        MatrixFormat::Dense(Float::BF16) => decode_bf16(isa, bytes, out),
        MatrixFormat::Affine(affine) => {
            assert!(affine.is_supported(weight.cols), "no kernel for {affine:?}");
            let mut unpacked = [0; COLS];
            let unpacked = &mut unpacked[..out.len()];
            unpack(isa, affine.bits, bytes, unpacked);
            let first = row * affine.n_groups(weight.cols) + affine.n_groups(col);
            decode_affine(isa, affine, unpacked, weight, first, out);
        }
    }
}

/// The integers of a piece of a row.
fn unpack(isa: Isa, bits: u8, packed: &[u8], out: &mut [u8]) {
    match isa.level() {
        Level::Scalar => unpack_group(bits, packed, out),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: holding this `Isa` proves that the machine has AVX2, FMA and F16C.
        Level::Avx2 => unsafe { super::avx2::unpack_row(bits, packed, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: holding this `Isa` proves that the machine has these parts of AVX-512.
        Level::Avx512 => unsafe { super::avx512::unpack_row(bits, packed, out) },
    }
}

for_every_isa! {
    fn decode_f32(bytes: &[u8], out: &mut [f32]) {
        for (it, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
            *it = f32::from_le_bytes(*bytes);
        }
    }
}

for_every_isa! {
    fn decode_bf16(bytes: &[u8], out: &mut [f32]) {
        for (it, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
            *it = bf16_to_f32(u16::from_le_bytes(*bytes));
        }
    }
}

for_every_isa! {
    fn decode_f16(bytes: &[u8], out: &mut [f32]) {
        for (it, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
            *it = f16_to_f32(u16::from_le_bytes(*bytes));
        }
    }
}

for_every_isa! {
    /// `first` is the index of the first group's scale and bias.
    fn decode_affine(
        affine: Affine,
        q: &[u8],
        weight: &MatrixView<'_>,
        first: usize,
        out: &mut [f32],
    ) {
        let groups = out.chunks_exact_mut(affine.group_size).zip(q.chunks_exact(affine.group_size));
        for (g, (out, q)) in groups.enumerate() {
            let scale = affine.params.read(weight.scales, first + g);
            let bias = affine.params.read(weight.biases, first + g);
            for (it, q) in out.iter_mut().zip(q) {
                *it = scale.mul_add(f32::from(*q), bias);
            }
        }
    }
}

/// `half` asks the processor what it can do for each element; this one the
/// compiler can vectorise.
#[inline(always)]
fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let magnitude = u32::from(bits & 0x7fff) << 13;
    // The exponent's bias goes from 15 to 127; exact for denormals too.
    let finite = f32::from_bits(magnitude) * f32::from_bits((127 + 127 - 15) << 23);
    let special = magnitude | 0x7f80_0000;
    let is_special = magnitude >= 31 << 23;
    f32::from_bits(sign | if is_special { special } else { finite.to_bits() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_decode_as_in_half() {
        for bits in 0..=u16::MAX {
            let (got, want) = (f16_to_f32(bits), half::f16::from_bits(bits).to_f32());
            assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{bits:#06x}");
        }
    }
}
