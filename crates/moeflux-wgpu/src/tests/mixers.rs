//! Rows of a delta net by themselves against many together.

use moeflux_backend::{
    ActivationPrecision, Buf, Cache, CacheSpec, CausalConv, Cols, Decay, DeltaNet, DeltaRule,
    ExpertResidency, GateFunction, GatedRmsNorm, Ops, Projection, RmsNorm, Sequences, Span,
    StateShape, ValueOrder,
};
use moeflux_core::quant::{Affine, Float, MatrixFormat};

use super::{context, matrix};
use crate::backend::new_backend;
use crate::state::gpu::Wgpu;
use crate::tests::metal::cases::Capturing;

const ROWS: usize = 23;

fn floats(seed: u32, n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i as f32 + 1.0) * 0.618 + seed as f32 * 1.7).sin() * 2.0).collect()
}

/// A delta net and what it reads.
pub(super) struct Net {
    pub(super) op: DeltaNet,
    pub(super) out: Cols,
    pub(super) specs: [CacheSpec; 2],
    /// What is convolved, decays and strengths, gates.
    inputs: [Cols; 3],
}

/// Floats of a key and of a value of a head, and what decays.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadDims {
    pub(super) k: usize,
    pub(super) v: usize,
    pub(super) decay: Decay,
}

impl HeadDims {
    pub(super) const WIDE: HeadDims = HeadDims::new(128, 128);
    pub(super) const NARROW: HeadDims = HeadDims::new(64, 32);
    pub(super) const UNEVEN: HeadDims = HeadDims::new(21, 70);

    pub(super) const fn new(k: usize, v: usize) -> HeadDims {
        HeadDims { k, v, decay: Decay::Head }
    }

    fn with(self, decay: Decay) -> HeadDims {
        HeadDims { decay, ..self }
    }
}

impl Net {
    /// One for steps of at most this many rows; what is read is in one buffer, or each in its
    /// own.
    pub(super) fn new(b: &mut Wgpu, rows: usize, dims: HeadDims, is_one: bool) -> Net {
        let HeadDims { k: k_dim, v: v_dim, decay } = dims;
        let (n_k_heads, n_v_heads, kernel) = (2, 4, 4);
        let (k_cols, v_cols) = (n_k_heads * k_dim, n_v_heads * v_dim);
        let channels = 2 * k_cols + v_cols;
        let cols = |b: &mut Wgpu, len| Cols { buf: b.alloc(rows, len), start: 0, len };
        let (qkv, out) = (cols(b, channels), cols(b, v_cols));
        let n_decays = n_v_heads * decay.len(k_dim);
        let is_of_heads = decay == Decay::Head;
        let widths = match decay {
            Decay::Head => [channels, n_decays + n_v_heads, v_cols],
            _ => [channels + n_v_heads, n_decays, v_cols],
        };
        let [x, gates, z] = widths;
        let inputs = if is_one && is_of_heads {
            let all = cols(b, x + gates + z);
            [all.slice(0, x), all.slice(x, gates), all.slice(x + gates, z)]
        } else if is_one {
            let others = cols(b, gates + z);
            [cols(b, x), others.slice(0, gates), others.slice(gates, z)]
        } else {
            widths.map(|width| cols(b, width))
        };
        let [x, gates, z] = inputs;
        let strengths = match decay {
            Decay::Head => gates.slice(n_decays, n_v_heads),
            _ => x.slice(channels, n_v_heads),
        };
        let x = x.slice(0, channels);
        let vector = |b: &mut Wgpu, seed, n| b.load_vector(&floats(seed, n));
        let delta = DeltaRule {
            out: out.heads(n_v_heads),
            q: qkv.slice(0, k_cols).heads(n_k_heads),
            k: qkv.slice(k_cols, k_cols).heads(n_k_heads),
            v: qkv.slice(2 * k_cols, v_cols).heads(n_v_heads),
            order: ValueOrder::Grouped,
            decay,
            a: gates.slice(0, n_decays),
            b: strengths,
            of_heads: vector(b, 1, n_v_heads + n_decays),
            cache: Cache(1),
        };
        let norm = RmsNorm { out: delta.out, x: delta.out, weight: vector(b, 3, v_dim), eps: 1e-6 };
        let weight = vector(b, 4, kernel * channels);
        let op = DeltaNet {
            conv: CausalConv { out: qkv, x, weight, bias: None, cache: Cache(0) },
            delta,
            norm: GatedRmsNorm {
                norm,
                gate: z.heads(n_v_heads),
                function: GateFunction::Silu,
                gates_input: false,
            },
        };
        let specs = [
            CacheSpec::State(StateShape::Rows { n: kernel - 1, cols: channels }),
            CacheSpec::State(StateShape::Matrices { n: n_v_heads, rows: v_dim, cols: k_dim }),
        ];
        Net { op, out, specs, inputs }
    }

    /// Writes what is read: of each row its text and its position there.
    pub(super) fn write(&self, b: &mut Wgpu, rows: &[(u32, usize)]) {
        let columns = |i: u32, (text, at): (u32, usize)| {
            let len = self.inputs[i as usize].len;
            floats(5 + i + 10 * text, (at + 1) * len).split_off(at * len)
        };
        for first in self.inputs {
            let of_buffer: Vec<u32> =
                (0..3).filter(|i| self.inputs[*i as usize].buf == first.buf).collect();
            let mut all = Vec::new();
            for row in rows {
                let of_row = of_buffer.iter().flat_map(|i| columns(*i, *row));
                all.extend(of_row);
            }
            b.write(first.buf, &all);
        }
    }

    /// A product with what the net gives, if that can be rounded.
    pub(super) fn product(&self, b: &mut Wgpu, rows: usize) -> Option<Projection> {
        let format = MatrixFormat::Affine(Affine::new(4, 64, Float::BF16));
        let can = self.out.len.is_multiple_of(64);
        let weight =
            can.then(|| matrix(b, format, 40, self.out.len, ActivationPrecision::Int16))?;
        Some(Projection { weight, out: Cols { buf: b.alloc(rows, 40), start: 0, len: 40 } })
    }
}

/// The bits of a buffer's first rows.
pub(super) fn row_bits(b: &mut Wgpu, buf: Buf, rows: usize) -> Vec<u32> {
    let rows = b.read(buf, rows).expect("the device works");
    rows.into_iter().map(f32::to_bits).collect()
}

/// Kernels that were recorded so far.
pub(super) fn n_kernels(b: &Wgpu) -> u64 {
    b.counters().stats().kernels
}

/// Bits of all rows and of the states, and of products with rows where there are
/// few; the kernels of the last step.
struct Bits {
    rows: Vec<u32>,
    products: Vec<u32>,
    n_kernels: u64,
}

/// The bits of all rows, this many a step; what is read is in one buffer, or each in its own.
fn bits(b: &mut Wgpu, dims: HeadDims, per_step: usize, is_one: bool) -> Bits {
    let net = Net::new(b, ROWS, dims, is_one);
    let sequence = b.new_sequence(&net.specs);
    let product = net.product(b, ROWS);
    let mut all = Bits { rows: Vec::new(), products: Vec::new(), n_kernels: 0 };
    for position in (0..ROWS).step_by(per_step) {
        let n = per_step.min(ROWS - position);
        net.write(b, &(position..position + n).map(|at| (0, at)).collect::<Vec<_>>());
        let before = n_kernels(b);
        b.delta_net(net.op, &[Span::new(sequence, 0..n, position)]);
        if let Some(product) = product.filter(|_| n <= 8) {
            b.project(n, net.out, &[product]);
            all.products.extend(row_bits(b, product.out.buf, n));
        }
        all.rows.extend(row_bits(b, net.out.buf, n));
        all.n_kernels = n_kernels(b) - before;
    }
    for cache in [Cache(0), Cache(1)] {
        let state = b.save_cache(sequence, cache, 0..ROWS).expect("the device works");
        all.rows.extend(state.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)));
    }
    all
}

#[test]
fn rows_of_a_delta_net_have_the_same_bits_alone_and_together() {
    let Some(context) = context() else { return };
    for dims in [
        HeadDims::WIDE,
        HeadDims::UNEVEN,
        HeadDims::NARROW,
        HeadDims::new(160, 48),
        HeadDims::new(512, 16),
        HeadDims::WIDE.with(Decay::Columns),
        HeadDims::UNEVEN.with(Decay::Bounded { bound: -5.0 }),
    ] {
        let open = || new_backend(std::sync::Arc::clone(&context), None);
        let together = bits(&mut open(), dims, ROWS, false).rows;
        assert!(together.iter().any(|bits| *bits != 0), "{dims:?}: nothing but zeros");
        let steps = [(ROWS, true), (3, false), (1, false), (3, true), (1, true)];
        for (per_step, is_one) in steps {
            let other = bits(&mut open(), dims, per_step, is_one).rows;
            let first = together.iter().zip(&other).position(|(one, other)| one != other);
            assert_eq!(first, None, "{dims:?}: from the row of that element on");
        }
    }
}

#[test]
fn a_delta_net_of_one_kernel_rounds_for_the_product_behind_it() {
    let Some(context) = context() else { return };
    let capturing = Capturing::new(&context);
    // Heads that are whole groups, or not.
    let columns = HeadDims::WIDE.with(Decay::Columns);
    for (dims, saves) in [(HeadDims::WIDE, 2), (HeadDims::NARROW, 1), (columns, 2)] {
        for per_step in [1, 3] {
            let [apart, one] = [false, true].map(|fuses| {
                let mut b = capturing.open();
                b.fuses &= fuses;
                bits(&mut b, dims, per_step, true)
            });
            assert!(one.products.iter().any(|bits| f32::from_bits(*bits).abs() > 1e-6));
            assert!(one.products == apart.products, "{dims:?}, {per_step} rows a step");
            if context.has_many_bindings() {
                assert_eq!(one.n_kernels + saves, apart.n_kernels, "{dims:?}");
            }
        }
    }
}
