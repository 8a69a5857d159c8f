//! Ops over whole rows in one kernel, against each by itself.

use std::sync::Arc;

use moeflux_backend::{
    ActivationPrecision, Cols, Combine, ExpertResidency, Ops, Projection, Recording, RmsNorm,
    Shared, Vector,
};
use moeflux_core::SplitMix64;
use moeflux_core::quant::{Affine, Float, MatrixFormat};

use super::{context, matrix};
use crate::Context;
use crate::backend::new_backend;
use crate::kernels::basic::CHAIN_BINDINGS;
use crate::state::gpu::Wgpu;
use crate::tests::metal::cases::Capturing;

const OUTPUTS: usize = 40;

/// Whether the device binds as many buffers as chains have.
fn has_chains(context: &Context) -> bool {
    context.limits.max_storage_buffers_per_shader_stage as usize >= CHAIN_BINDINGS
}

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
            let expected = if has_chains(&context) { n_apart - 1 } else { n_apart };
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

/// Columns of the parts of a layer that has norms before and after them.
struct Layer {
    mixed: Cols,
    hidden: Cols,
    inputs: [Cols; 3],
    dense: Cols,
    sum: Cols,
    zeros: Cols,
    normed: Cols,
    slots: Cols,
    norms: [Vector; 4],
    products: [Projection; 3],
}

const TOP_K: usize = 8;

impl Layer {
    fn new(b: &mut Wgpu, rows: usize, cols: usize) -> Layer {
        let factors = [0.37, 0.73, 0.11, 0.12, 0.13, 0.21, 0.5];
        let [mixed, hidden, one, two, three, dense, normed] =
            factors.map(|factor| filled(b, rows, cols, factor));
        let [sum, zeros] = [0; 2].map(|_| Cols { buf: b.alloc(rows, cols), start: 0, len: cols });
        let format = MatrixFormat::Affine(Affine::new(4, 64, Float::BF16));
        let products = [0; 3].map(|_| {
            let weight = matrix(b, format, OUTPUTS, cols, ActivationPrecision::Int16);
            Projection { weight, out: filled(b, rows, OUTPUTS, 0.2) }
        });
        Layer {
            mixed,
            hidden,
            inputs: [one, two, three],
            dense,
            sum,
            zeros,
            normed,
            slots: filled(b, TOP_K * rows, cols, 0.4),
            norms: [0.3, 0.31, 0.32, 0.33].map(|factor| b.load_vector(&values(cols, factor))),
            products,
        }
    }

    fn norm(&self, b: &mut Wgpu, rows: usize, nth: usize, [out, x]: [Cols; 2]) {
        let weight = self.norms[nth];
        b.rms_norm(rows, RmsNorm { out: out.heads(1), x: x.heads(1), weight, eps: 1e-6 });
    }

    /// What stands between attention and experts, and what these are.
    fn middle(&self, b: &mut Wgpu, rows: usize) {
        let Layer { mixed, hidden, inputs, sum, zeros, products, .. } = *self;
        self.norm(b, rows, 0, [mixed, mixed]);
        b.add(rows, hidden, mixed);
        for (nth, input) in inputs.into_iter().enumerate() {
            self.norm(b, rows, nth + 1, [input, hidden]);
        }
        b.copy(rows, sum.heads(1), zeros.heads(1));
        b.project(rows, inputs[0], &products[..1]);
        b.project(rows, inputs[2], &products[1..2]);
    }

    /// What follows experts, up to what the next layer reads.
    fn end(&self, b: &mut Wgpu, rows: usize) {
        let Layer { hidden, dense, sum, normed, slots, products, .. } = *self;
        let weights = values(TOP_K * rows, 1.1);
        let shared = None;
        b.combine(
            rows,
            Combine { acc: sum, slots: slots.buf, top_k: TOP_K, weights: &weights, shared },
        );
        self.norm(b, rows, 0, [sum, sum]);
        self.norm(b, rows, 1, [dense, dense]);
        b.add(rows, sum, dense);
        self.norm(b, rows, 2, [sum, sum]);
        b.add(rows, hidden, sum);
        b.scale(rows, hidden, 0.7);
        self.norm(b, rows, 3, [normed, hidden]);
        b.project(rows, normed, &products[2..]);
    }
}

#[test]
fn a_layer_of_many_norms_has_its_bits_in_few_kernels() {
    let Some(context) = context() else { return };
    let capturing = Capturing::new(&context);
    for (rows, cols) in [(1, 2816), (1, 256), (3, 640), (8, 512)] {
        let [(want, n_apart), (got, n_together)] = [false, true].map(|fuses| {
            let mut b = capturing.open();
            b.fuses &= fuses;
            let layer = Layer::new(&mut b, rows, cols);
            let mut all = Vec::new();
            let mut n_kernels = [0; 2];
            // What products want is known from the first time.
            for _ in 0..2 {
                for (nth, part) in [Layer::middle, Layer::end].into_iter().enumerate() {
                    let before = b.counters().stats().kernels;
                    part(&layer, &mut b, rows);
                    let [one, two, three] = layer.inputs;
                    let outs = layer.products.map(|product| product.out);
                    let bufs =
                        [layer.hidden, layer.sum, layer.dense, layer.normed, one, two, three];
                    for cols in bufs.into_iter().chain(outs) {
                        let read = b.read(cols.buf, rows).expect("the device works");
                        all.extend(read.iter().map(|value| value.to_bits()));
                    }
                    n_kernels[nth] = b.counters().stats().kernels - before;
                }
            }
            (all, n_kernels)
        });
        assert_eq!(got, want, "{rows} rows of {cols}");
        assert!(got.iter().all(|bits| f32::from_bits(*bits).is_finite()), "{rows} rows of {cols}");
        let [middle, end] = n_apart;
        let expected = if has_chains(&context) { [middle - 5, end - 7] } else { n_apart };
        assert_eq!(n_together, expected, "{rows} rows of {cols}");
    }
}

/// Runs ops that chance chooses over columns that share buffers, or not.
fn bits_of_chance(b: &mut Wgpu, seed: u64) -> Vec<u32> {
    const ROWS: usize = 2;
    const COLS: usize = 128;
    let mut random = SplitMix64::new(seed);
    let mut pool: Vec<Cols> =
        (0u8..9).map(|nth| filled(b, ROWS, COLS, 0.1 + 0.07 * f32::from(nth))).collect();
    let wide = filled(b, ROWS, 2 * COLS + 64, 0.77);
    pool.extend([0, 64, COLS].map(|start| Cols { start, len: COLS, ..wide }));
    pool.extend([0, 1].map(|nth| Cols { len: 64, ..pool[nth] }));
    let slots = filled(b, 3 * ROWS, COLS, 0.21);
    let norms = [0.3, 0.4, 0.5, 0.6, 0.7, 0.8].map(|factor| b.load_vector(&values(COLS, factor)));
    let narrow = b.load_vector(&values(64, 0.9));

    for _ in 0..40 {
        let (kind, weight) = (random.below(6), norms[random.below(norms.len())]);
        let one = pool[random.below(pool.len())];
        let alike = pool.iter().filter(|other| other.len == one.len && other.buf != one.buf);
        let alike: Vec<Cols> = alike.copied().collect();
        let other = alike[random.below(alike.len())];
        let weight = if one.len == COLS { weight } else { narrow };
        let norm = |x: Cols| RmsNorm { out: one.heads(1), x: x.heads(1), weight, eps: 1e-6 };
        match kind {
            0 => b.add(ROWS, one, other),
            1 => b.rms_norm(ROWS, norm(one)),
            2 => b.rms_norm(ROWS, norm(other)),
            3 => b.scale(ROWS, one, 0.75),
            4 => b.copy(ROWS, one.heads(1), other.heads(1)),
            _ => {
                let weights = values(3 * ROWS, 1.1);
                let shared = Some(Shared { out: other, gate: None });
                let op =
                    Combine { acc: one, slots: slots.buf, top_k: 3, weights: &weights, shared };
                b.combine(ROWS, op);
            }
        }
    }
    let bufs = pool.iter().map(|cols| cols.buf).collect::<Vec<_>>();
    let read = |buf| b.read(buf, ROWS).expect("the device works");
    bufs.into_iter().flat_map(read).map(f32::to_bits).collect()
}

#[test]
fn ops_in_any_order_have_the_bits_that_they_have_by_themselves() {
    let Some(context) = context() else { return };
    for seed in 0..4 {
        let [want, got] = [false, true].map(|fuses| {
            let mut b = new_backend(Arc::clone(&context), None);
            b.fuses &= fuses;
            bits_of_chance(&mut b, seed)
        });
        assert_eq!(got, want, "seed {seed}");
    }
}
