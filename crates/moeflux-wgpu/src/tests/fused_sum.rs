//! Norms that add up what they read themselves, against sums by themselves.

use moeflux_backend::{
    ActivationPrecision, Cols, Combine, ExpertResidency, Ops, Projection, Recording, RmsNorm,
    Shared,
};
use moeflux_core::quant::{Affine, Float, MatrixFormat};

use super::{context, matrix};
use crate::backend::new_backend;
use crate::state::gpu::Wgpu;
use crate::tests::metal::cases::Capturing;

const OUTPUTS: usize = 40;

/// What is added to the columns that are normalised.
#[derive(Clone, Copy, Debug)]
enum Added {
    Row,
    Choices { top_k: usize, is_shared: bool, is_gated: bool },
}

fn values(n: usize, factor: f32) -> Vec<f32> {
    (0..n).map(|i| (i as f32 * factor).sin()).collect()
}

fn filled(b: &mut Wgpu, rows: usize, width: usize, factor: f32) -> Cols {
    let buf = b.alloc(rows, width);
    b.write(buf, &values(rows * width, factor));
    Cols { buf, start: 0, len: width }
}

/// The bits of sum, norm and product, twice, and the kernels of the second time.
fn bits(b: &mut Wgpu, added: Added, rows: usize, cols: usize) -> (Vec<u32>, u64) {
    let format = MatrixFormat::Affine(Affine::new(4, 64, Float::BF16));
    let weight = matrix(b, format, OUTPUTS, cols, ActivationPrecision::Int16);
    let [acc, x, normed] = [0.37, 0.73, 0.11].map(|factor| filled(b, rows, cols, factor));
    let out = filled(b, rows, OUTPUTS, 0.2);
    let norm = b.load_vector(&values(cols, 0.3));
    let norm = RmsNorm { out: normed.heads(1), x: acc.heads(1), weight: norm, eps: 1e-6 };
    let (slots, gate) = (filled(b, 8 * rows, cols, 0.21), filled(b, rows, 1, 0.9));
    let mut all = Vec::new();
    let mut n_kernels = 0;
    // What products want is known from the first time.
    for _ in 0..2 {
        let kernels = |b: &Wgpu| b.counters().stats().kernels;
        let before = kernels(b);
        match added {
            Added::Row => b.add(rows, acc, x),
            Added::Choices { top_k, is_shared, is_gated } => {
                // Of nothing that has no weight anything is read.
                let mut weights: Vec<f32> = values(rows * top_k, 1.1);
                weights[0] = 0.0;
                let gate = is_gated.then_some(gate);
                let shared = is_shared.then_some(Shared { out: x, gate });
                let op = Combine { acc, slots: slots.buf, top_k, weights: &weights, shared };
                b.combine(rows, op);
            }
        }
        b.rms_norm(rows, norm);
        b.project(rows, normed, &[Projection { weight, out }]);
        for cols in [out, normed, acc] {
            let read = b.read(cols.buf, rows).expect("the device works");
            all.extend(read.iter().map(|value| value.to_bits()));
        }
        n_kernels = kernels(b) - before;
    }
    (all, n_kernels)
}

#[test]
fn a_norm_that_adds_up_has_the_bits_of_a_norm_behind_a_sum() {
    let Some(context) = context() else { return };
    let capturing = Capturing::new(&context);
    let choices = |top_k, is_shared, is_gated| Added::Choices { top_k, is_shared, is_gated };
    let cases =
        [Added::Row, choices(1, false, false), choices(3, true, false), choices(8, true, true)];
    for added in cases {
        for (rows, cols) in [(1, 128), (3, 640), (8, 2048)] {
            let [(want, n_apart), (got, n_together)] = [false, true].map(|fuses| {
                let mut b = capturing.open();
                b.fuses &= fuses;
                bits(&mut b, added, rows, cols)
            });
            assert_eq!(got, want, "{added:?}, {rows} rows of {cols}");
            assert!(got.iter().all(|bits| f32::from_bits(*bits).is_finite()), "{added:?}");
            let expected = if context.has_many_bindings() { n_apart - 1 } else { n_apart };
            assert_eq!(n_together, expected, "{added:?}, {rows} rows of {cols}");
        }
    }
}

#[test]
fn a_sum_is_added_once_whatever_follows() {
    let Some(context) = context() else { return };
    let b = &mut new_backend(context, None);
    let [acc, x, normed] = [0.37, 0.73, 0.11].map(|factor| filled(b, 1, 128, factor));
    let weight = b.load_vector(&values(128, 0.3));
    let norm = |x: Cols| RmsNorm { out: normed.heads(1), x: x.heads(1), weight, eps: 1e-6 };
    // Normalised twice, of other columns, after a read-back, where what is added was.
    let ops: [&dyn Fn(&mut Wgpu); 5] = [
        &|b| {
            b.rms_norm(1, norm(acc));
            b.rms_norm(1, norm(acc));
        },
        &|b| b.rms_norm(1, norm(x)),
        &|b| drop(b.read(x.buf, 1)),
        &|b| b.rms_norm(1, RmsNorm { out: x.heads(1), ..norm(acc) }),
        &|b| b.flush(),
    ];
    for op in ops {
        b.write(x.buf, &values(128, 0.73));
        let before = b.read(acc.buf, 1).expect("the device works");
        b.add(1, acc, x);
        op(b);
        b.rms_norm(1, norm(acc));
        let after = b.read(acc.buf, 1).expect("the device works");
        let sums = before.iter().zip(values(128, 0.73)).map(|(a, b)| a + b);
        assert!(sums.eq(after.iter().copied()));
    }
}
