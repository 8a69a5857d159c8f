//! Products of many rows with narrow matrices, whose inputs are as they are: a layout of
//! their own, which follows from each matrix alone.

use std::sync::Arc;

use moeflux_backend::cpu::{Cpu, Isa};
use moeflux_backend::{ActivationPrecision, Backend, Cols, ExpertResidency, Projection};
use moeflux_core::quant::{Affine, Float, MatrixFormat};

use super::{ABSOLUTE, RELATIVE, context, matrix};
use crate::backend::new_backend;

/// Rows of the widest of the narrow matrices, and more.
const NARROW: usize = 512;
const WIDE: usize = 513;

fn affine(bits: u8) -> MatrixFormat {
    MatrixFormat::Affine(Affine::new(bits, 32, Float::BF16))
}

fn formats() -> [MatrixFormat; 4] {
    [MatrixFormat::Dense(Float::F32), MatrixFormat::Dense(Float::BF16), affine(4), affine(8)]
}

/// Products of matrices that are next to each other.
#[derive(Clone, Copy)]
struct Shape<'a> {
    /// Rows of activations.
    rows: usize,
    /// The column of their buffer at which these begin.
    start: usize,
    /// Rows of each matrix.
    outputs: &'a [usize],
    cols: usize,
}

fn products(b: &mut dyn Backend, format: MatrixFormat, shape: Shape<'_>) -> Vec<f32> {
    let Shape { rows, start, outputs, cols } = shape;
    let width = outputs.iter().sum();
    let (x, y) = (b.alloc(rows, cols + start), b.alloc(rows, width));
    let value = |i: usize| {
        let (row, col) = (i / (cols + start), i % (cols + start));
        if col < start { f32::NAN } else { ((row * cols + col - start) as f32 * 0.37).sin() }
    };
    b.write(x, &(0..rows * (cols + start)).map(value).collect::<Vec<_>>());
    let out = Cols { buf: y, start: 0, len: width };
    let mut first = 0;
    let mut projections = Vec::new();
    for n in outputs {
        let weight = matrix(b, format, *n, cols, ActivationPrecision::F32);
        projections.push(Projection { weight, out: out.slice(first, *n) });
        first += n;
    }
    // Uploads of large matrices are kernels, too.
    b.read(y, 0).expect("the device works");
    if let Some(residency) = b.residency() {
        residency.counters().reset();
    }
    b.project(rows, Cols { buf: x, start, len: cols }, &projections);
    b.read(y, rows).expect("the device works")
}

#[test]
fn narrow_matrices_and_others_agree_with_the_specification() {
    let Some(context) = context() else { return };
    for format in formats() {
        let ragged = if matches!(format, MatrixFormat::Dense(_)) { 100 } else { 96 };
        for (rows, outputs, cols, start) in [
            (131, 1, ragged, 0),
            (300, 33, ragged, 3),
            (150, 300, ragged, 0),
            (131, 33, 2080, 1),
            (200, 1, 2080, 0),
            (131, 300, 2080, 4),
            (140, WIDE, ragged, 0),
            (140, WIDE, 160, 2),
        ] {
            let run = |b: &mut dyn Backend| {
                products(b, format, Shape { rows, start, outputs: &[outputs], cols })
            };
            let want = run(&mut Cpu::new(1, Isa::SCALAR));
            let got = run(&mut new_backend(Arc::clone(&context), None));
            let largest = want.iter().fold(0.0f32, |max, value| max.max(value.abs()));
            let allowed = ABSOLUTE + RELATIVE * largest;
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                assert!(
                    (got - want).abs() <= allowed,
                    "{format:?} {outputs}x{cols}, {rows} rows from {start}: element {i} is {got:e}, \
                     the specification says {want:e}"
                );
            }
        }
    }
}

#[test]
fn what_a_narrow_matrix_meets_follows_from_the_matrix_alone() {
    let Some(context) = context() else { return };
    for format in formats() {
        for (n, cols) in [(33, 2080), (NARROW, 96), (WIDE, 96)] {
            let run = |outputs: &[usize], rows, start| {
                let mut b = new_backend(Arc::clone(&context), None);
                let all = products(&mut b, format, Shape { rows, start, outputs, cols });
                let width = outputs.iter().sum::<usize>();
                let of_row = |row: &[f32]| row[..n].iter().map(|value| value.to_bits()).collect();
                let bits: Vec<Vec<u32>> = all.chunks(width).map(of_row).collect();
                (bits, b.counters().stats().kernels)
            };
            let (want, _) = run(&[n], 300, 0);
            assert!(want == run(&[n], 300, 1).0, "{format:?} {n}x{cols} unaligned");
            let (got, n_alike) = run(&[n, n], 150, 0);
            assert!(want[..150] == got, "{format:?} {n}x{cols} in fewer rows");
            let other = if n == WIDE { 1 } else { WIDE };
            let (got, n_apart) = run(&[n, other], 150, 0);
            assert!(want[..150] == got, "{format:?} {n}x{cols} with {other}");
            assert_eq!(n_apart, n_alike + 1, "{format:?}: {n} and {other} in one layout");
        }
    }
}
