//! Interleaved super-blocks, as GGUF stores them, run through the specification of the integer
//! product and give what their own formula gives.

use half::f16;
use moeflux_core::quant::{Float, MatrixFormat};

use super::super::scalar::row_outputs;
use super::super::{Quantised, Rounding};
use super::*;
use crate::cpu::{Isa, Pool};

/// 32 columns: an `f16` scale, then as many signed bytes.
#[derive(Clone, Copy)]
struct Q8_0;

impl BlockFormat for Q8_0 {
    fn block_cols(self) -> usize {
        32
    }

    fn group_cols(self) -> usize {
        32
    }

    fn block_bytes(self) -> usize {
        34
    }

    fn unpack(self, block: &[u8], out: &mut [u8]) {
        for (out, code) in out.iter_mut().zip(&block[2..]) {
            *out = code.wrapping_add(128);
        }
    }

    fn params(self, weight: &MatrixView<'_>, group: usize) -> (f32, f32) {
        let scale = half_at(weight.weight, 34 * group);
        (scale, -128.0 * scale)
    }
}

/// 256 columns: `f16` factors of the scales and of the minima of eight groups, eight 6-bit scales
/// and minima in twelve bytes, and nibbles, of which 32 bytes hold 64 columns.
#[derive(Clone, Copy)]
struct Q4K;

impl BlockFormat for Q4K {
    fn block_cols(self) -> usize {
        256
    }

    fn group_cols(self) -> usize {
        32
    }

    fn block_bytes(self) -> usize {
        144
    }

    fn unpack(self, block: &[u8], out: &mut [u8]) {
        for (out, nibbles) in out.chunks_exact_mut(64).zip(block[16..].chunks_exact(32)) {
            let (low, high) = out.split_at_mut(32);
            for ((low, high), byte) in low.iter_mut().zip(high).zip(nibbles) {
                (*low, *high) = (byte & 15, byte >> 4);
            }
        }
    }

    fn params(self, weight: &MatrixView<'_>, group: usize) -> (f32, f32) {
        let (block, group) = (&weight.weight[144 * (group / 8)..][..144], group % 8);
        let packed = &block[4..16];
        let (scale, min) = if group < 4 {
            (packed[group] & 63, packed[group + 4] & 63)
        } else {
            let both = packed[group + 4];
            (both & 15 | packed[group - 4] >> 6 << 4, both >> 4 | packed[group] >> 6 << 4)
        };
        let (d, dmin) = (half_at(block, 0), half_at(block, 2));
        (d * f32::from(scale), -(dmin * f32::from(min)))
    }
}

fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Blocks with any codes; the `f16` at these offsets are small numbers.
fn blocks(n: usize, block_bytes: usize, halves: &[usize]) -> Vec<u8> {
    let mut state = 7u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    };
    let mut bytes: Vec<u8> = (0..n * block_bytes).map(|_| next() as u8).collect();
    for block in bytes.chunks_exact_mut(block_bytes) {
        for at in halves {
            let value = f16::from_f32((next() % 1000) as f32 * 1e-4);
            block[*at..at + 2].copy_from_slice(&value.to_le_bytes());
        }
    }
    bytes
}

/// The outputs for one row of ones and one of other numbers, against the sum of all elements times
/// activations in `f64`.
#[track_caller]
fn check<F: BlockFormat>(format: F, stored: &[u8], element: impl Fn(usize, usize) -> f64) {
    let (rows, cols) = (3, 512);
    let x: Vec<f32> =
        (0..2 * cols).map(|i| if i < cols { 1.0 } else { (i as f32 * 0.37).sin() }).collect();
    let mut quantised = Quantised::default();
    let rounding = Rounding {
        x: &x,
        stride: cols,
        n_rows: 2,
        cols,
        group_size: format.group_cols(),
        n_limbs: 2,
    };
    quantised.quantise(&Pool::new(1), Isa::SCALAR, rounding);
    // Kernels that are generic over block formats do not read the format of the view.
    let weight = MatrixView {
        rows,
        cols,
        format: MatrixFormat::Dense(Float::F32),
        weight: stored,
        scales: &[],
        biases: &[],
    };
    for row in 0..rows {
        let outputs = row_outputs(format, &weight, row, &quantised, 0..2);
        for (x, got) in x.chunks_exact(cols).zip(outputs) {
            let products = x.iter().enumerate().map(|(col, x)| element(row, col) * f64::from(*x));
            let (want, size) = products
                .fold((0.0, 0.0), |(sum, size), product| (sum + product, size + product.abs()));
            let error = (f64::from(got) - want).abs();
            assert!(error <= 1e-4 * size, "row {row}: {got}, not {want}");
        }
    }
}

#[test]
fn blocks_of_signed_bytes_multiply() {
    let stored = blocks(3 * 16, 34, &[0]);
    check(Q8_0, &stored, |row, col| {
        let block = &stored[34 * (16 * row + col / 32)..];
        f64::from(half_at(block, 0)) * f64::from(block[2 + col % 32].cast_signed())
    });
}

#[test]
fn super_blocks_with_interleaved_parameters_multiply() {
    let stored = blocks(3 * 2, 144, &[0, 2]);
    // Groups whose packed scale and minimum are known.
    let bytes: Vec<u8> = (0..144).map(|i| if i == 4 { 0b10_000101 } else { 0 }).collect();
    let weight = MatrixView {
        rows: 1,
        cols: 256,
        format: MatrixFormat::Dense(Float::F32),
        weight: &[&f16::ONE.to_le_bytes()[..], &f16::ONE.to_le_bytes(), &bytes[4..]].concat(),
        scales: &[],
        biases: &[],
    };
    let params = |group| Q4K.params(&weight, group);
    assert_eq!(params(0), (5.0, 0.0));
    assert_eq!(params(4), (32.0, 0.0));
    check(Q4K, &stored, |row, col| {
        let at = 2 * row + col / 256;
        let block = &stored[144 * at..][..144];
        let col = col % 256;
        let byte = block[16 + col / 64 * 32 + col % 32];
        let code = if col % 64 < 32 { byte & 15 } else { byte >> 4 };
        let group = col / 32;
        // The twelve bytes as one number of 96 bits.
        let packed =
            block[4..16].iter().rev().fold(0u128, |all, byte| all << 8 | u128::from(*byte));
        let bits = |from: usize, n: usize| (packed >> from) as u32 & ((1 << n) - 1);
        let (scale, min) = match group {
            0..4 => (bits(8 * group, 6), bits(8 * (group + 4), 6)),
            _ => (
                bits(8 * (group + 4), 4) + 16 * bits(8 * (group - 4) + 6, 2),
                bits(8 * (group + 4) + 4, 4) + 16 * bits(8 * group + 6, 2),
            ),
        };
        f64::from(half_at(block, 0)) * f64::from(scale) * f64::from(code)
            - f64::from(half_at(block, 2)) * f64::from(min)
    });
}
