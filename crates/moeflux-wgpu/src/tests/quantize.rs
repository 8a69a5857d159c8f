//! Rounding in addition to what writes a buffer against rounding by itself.

use moeflux_backend::{
    ActivationPrecision, Cols, ExpertResidency, GateFunction, GatedActivation, GatedRmsNorm, Heads,
    Ops, PlainActivation, Projection, RmsNorm,
};
use moeflux_core::quant::{Affine, BlockType, Float, MatrixFormat};

use super::{context, layouts, matrix};
use crate::state::gpu::Wgpu;
use crate::tests::metal::cases::Capturing;

const ROWS: usize = 3;
const COLS: usize = 256;
const OUTPUTS: usize = 40;

/// What writes `out` from `a` and `b`, of this many columns each.
type Producer = fn(&mut Wgpu, out: Cols, a: Cols, b: Cols);

fn norm(b: &mut Wgpu, out: Heads, x: Heads) -> RmsNorm {
    let weight: Vec<f32> = (0..x.head_dim).map(|i| 1.0 + (i as f32 * 0.3).cos()).collect();
    RmsNorm { out, x, weight: b.load_vector(&weight), eps: 1e-6 }
}

const PRODUCERS: [(&str, Producer); 6] = [
    ("norm", |b, out, x, _| {
        let op = norm(b, out.heads(1), x.heads(1));
        b.rms_norm(ROWS, op);
    }),
    ("gated norm of heads", |b, out, x, gate| {
        let norm = norm(b, out.heads(2), x.heads(2));
        b.gated_rms_norm(
            ROWS,
            GatedRmsNorm {
                norm,
                gate: gate.heads(2),
                function: GateFunction::Silu,
                gates_input: false,
            },
        );
    }),
    ("swiglu", |b, out, gate, up| b.activate(ROWS, GatedActivation::Swiglu, out, gate, up)),
    ("relu2", |b, out, up, _| {
        b.copy(ROWS, out.heads(1), up.heads(1));
        b.activate_plain(ROWS, PlainActivation::Relu2, out);
    }),
    ("gelu", |b, out, gate, up| b.activate(ROWS, GatedActivation::GeluTanh, out, gate, up)),
    ("gate", |b, out, x, gate| {
        b.copy(ROWS, out.heads(1), x.heads(1));
        b.sigmoid_gate(ROWS, out.heads(4), gate.heads(4));
    }),
];

/// The products of what is produced, and how many kernels that took.
fn products(
    b: &mut Wgpu,
    producer: Producer,
    [out, x, gate, y]: [Cols; 4],
    projection: Projection,
) -> (Vec<u32>, u64) {
    let kernels = |b: &Wgpu| b.counters().stats().kernels;
    b.write(y.buf, &[f32::NAN; ROWS * OUTPUTS]);
    let before = kernels(b);
    producer(b, out, x, gate);
    b.project(ROWS, out, &[projection]);
    let after = kernels(b);
    let y = b.read(y.buf, ROWS).expect("the device works");
    (y.iter().map(|value| value.to_bits()).collect(), after - before)
}

#[test]
fn rounding_beside_another_kernel_changes_no_bit() {
    let Some(context) = context() else { return };
    let capturing = Capturing::new(&context);
    let affine = |group_size| MatrixFormat::Affine(Affine::new(4, group_size, Float::BF16));
    for (format, inputs) in [
        (affine(32), ActivationPrecision::Int16),
        (affine(64), ActivationPrecision::Int8),
        // With sums of sixteen columns each, which may share a scale.
        (MatrixFormat::Ggml(BlockType::Q4_K), ActivationPrecision::Int16),
        (MatrixFormat::Ggml(BlockType::Q2_K), ActivationPrecision::Int8),
    ] {
        for layout in [layouts()[0], layouts()[2]] {
            for (name, producer) in PRODUCERS {
                let mut b = capturing.open();
                b.fix_layout(Some(layout));
                let weight = matrix(&mut b, format, OUTPUTS, COLS, inputs);
                let [out, x, gate] =
                    [(); 3].map(|()| Cols { buf: b.alloc(ROWS, COLS), start: 0, len: COLS });
                let y = Cols { buf: b.alloc(ROWS, OUTPUTS), start: 0, len: OUTPUTS };
                let values: Vec<f32> = (0..ROWS * COLS).map(|i| (i as f32 * 0.37).sin()).collect();
                b.write(x.buf, &values);
                b.write(
                    gate.buf,
                    &values.iter().map(|value| 3.0 * value + 0.2).collect::<Vec<_>>(),
                );
                let projection = Projection { weight, out: y };
                let of = [out, x, gate, y];
                let (alone, n_alone) = products(&mut b, producer, of, projection);
                let (beside, n_beside) = products(&mut b, producer, of, projection);
                assert!(alone.iter().any(|bits| f32::from_bits(*bits).abs() > 1e-6), "{name}");
                assert_eq!(n_beside + 1, n_alone, "{name}: one kernel fewer");
                assert_eq!(beside, alone, "{name} {format:?} {inputs:?} {layout}");
            }
        }
    }
}
