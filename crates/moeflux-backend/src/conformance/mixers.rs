//! Convolutions and recurrences, with their states.

use std::fmt;

use super::suite::{Numbers, Suite, filled, read};
use crate::{
    Backend, Cache, CacheSpec, CausalConv, Cols, Decay, DeltaNet, DeltaRule, GateFunction,
    GatedRmsNorm, RmsNorm, Sequence, Span, StateShape, StateSpace, ValueOrder, Vector,
};

pub(super) fn check(suite: &Suite<'_>) {
    for (channels, kernel) in [(1, 2), (19, 3), (300, 4), (70, 10)] {
        for has_bias in [false, true] {
            convolution(suite, channels, kernel, has_bias);
        }
    }
    for [n_heads, n_groups, head_dim, state_size] in [
        [1, 1, 1, 1],
        [6, 2, 11, 21],
        [3, 3, 33, 6],
        [8, 2, 64, 128],
        [5, 1, 16, 256],
        [4, 2, 20, 7],
    ] {
        state_space(suite, StateSpaceShape { n_heads, n_groups, head_dim, state_size });
    }
    for order in [ValueOrder::Grouped, ValueOrder::Tiled] {
        for [n_k_heads, n_v_heads, k_dim, v_dim] in
            [[1, 1, 16, 16], [2, 6, 21, 11], [1, 2, 128, 128], [4, 8, 16, 16]]
        {
            let decay = Decay::Head;
            let shape = DeltaShape { n_k_heads, n_v_heads, k_dim, v_dim, order, decay };
            delta_rule(suite, shape);
            for is_in_place in [true, false] {
                delta_net(suite, shape, is_in_place);
            }
        }
    }
    // A device compiles kernels for each: few shapes are enough for other decays.
    let (columns, bounded) = (Decay::Columns, Decay::Bounded { bound: -5.0 });
    for (decay, order, [n_k_heads, n_v_heads, k_dim, v_dim]) in [
        (columns, ValueOrder::Tiled, [2, 6, 21, 11]),
        (columns, ValueOrder::Grouped, [2, 2, 128, 128]),
        (bounded, ValueOrder::Grouped, [4, 8, 16, 16]),
    ] {
        let shape = DeltaShape { n_k_heads, n_v_heads, k_dim, v_dim, order, decay };
        delta_rule(suite, shape);
        delta_net(suite, shape, true);
    }
}

/// Rows of long steps.
const LONG: usize = 150;

/// The heads of a delta rule.
#[derive(Clone, Copy, Debug)]
struct DeltaShape {
    n_k_heads: usize,
    n_v_heads: usize,
    k_dim: usize,
    v_dim: usize,
    order: ValueOrder,
    decay: Decay,
}

impl DeltaShape {
    /// Numbers that decays are of, in a row.
    fn n_decays(self) -> usize {
        self.n_v_heads * self.decay.len(self.k_dim)
    }

    fn of_heads(self, b: &mut dyn Backend, seeds: [u64; 2]) -> Vector {
        let [mut a_log, mut dt_bias] = seeds.map(Numbers::new);
        let all = [a_log.floats(self.n_v_heads), dt_bias.floats(self.n_decays())];
        b.load_vector(&all.concat())
    }
}

impl fmt::Display for DeltaShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DeltaShape { n_k_heads, n_v_heads, k_dim, v_dim, order, decay } = self;
        write!(f, "{n_k_heads}/{n_v_heads} {k_dim}x{v_dim} {order:?} {decay:?}")
    }
}

/// Steps of two sequences: a prefill, single rows, then both in one batch.
fn steps(a: Sequence, b: Sequence) -> Vec<Vec<Span>> {
    let span = |sequence, rows, position| Span::new(sequence, rows, position);
    vec![
        vec![span(a, 0..5, 0)],
        vec![span(b, 0..1, 0)],
        vec![span(a, 0..1, 5)],
        vec![span(a, 0..2, 6), span(b, 2..5, 1)],
    ]
}

/// Runs `step` for every step and collects what it left in `out`.
pub(super) fn run_steps(
    backend: &mut dyn Backend,
    spec: &[CacheSpec],
    out: Cols,
    step: &mut dyn FnMut(&mut dyn Backend, &[Span]),
) -> Vec<f32> {
    let (a, b) = (backend.new_sequence(spec), backend.new_sequence(spec));
    let mut all = Vec::new();
    for spans in steps(a, b) {
        step(backend, &spans);
        all.extend(read(backend, out.buf, spans.last().map_or(0, |span| span.rows.end)));
    }
    backend.clear_sequence(a);
    backend.drop_sequence(b);
    step(backend, &[Span::new(a, 0..3, 0)]);
    all.extend(read(backend, out.buf, 3));
    all
}

fn convolution(suite: &Suite<'_>, channels: usize, kernel: usize, has_bias: bool) {
    let name = format!("causal_conv {channels}x{kernel} {has_bias}");
    suite.case(&name, &|b| {
        let out = filled(b, 5, channels + 2, 40).slice(1, channels);
        let x = filled(b, 5, channels, 41);
        let weight = b.load_vector(&Numbers::new(42).floats(channels * kernel));
        let bias = has_bias.then(|| b.load_vector(&Numbers::new(48).floats(channels)));
        let op = CausalConv { out, x, weight, bias, cache: Cache(0) };
        let mut seed = 43;
        run_steps(
            b,
            &[CacheSpec::State(StateShape::Rows { n: kernel - 1, cols: channels })],
            out,
            &mut |b, spans| {
                seed += 1;
                b.write(x.buf, &Numbers::new(seed).floats(5 * channels));
                b.causal_conv(op, spans);
            },
        )
    });
}

/// The sizes of a state-space op.
#[derive(Clone, Copy, Debug)]
struct StateSpaceShape {
    n_heads: usize,
    n_groups: usize,
    head_dim: usize,
    state_size: usize,
}

/// Steps of a few rows, then one of more rows than any kernel takes at once, and a last row that
/// follows it.
fn state_space(suite: &Suite<'_>, shape: StateSpaceShape) {
    let StateSpaceShape { n_heads, n_groups, head_dim, state_size } = shape;
    suite.case(&format!("state_space {n_heads}/{n_groups} {head_dim}x{state_size}"), &|b| {
        let (cols, group_cols) = (n_heads * head_dim, n_groups * state_size);
        let all = filled(b, LONG, 2 * group_cols + cols + n_heads, 150);
        let out = filled(b, LONG, cols, 151);
        let op = StateSpace {
            out: out.heads(n_heads),
            x: all.slice(0, cols).heads(n_heads),
            b: all.slice(cols, group_cols).heads(n_groups),
            c: all.slice(cols + group_cols, group_cols).heads(n_groups),
            dt: all.slice(cols + 2 * group_cols, n_heads),
            of_heads: b.load_vector(&Numbers::new(152).floats(3 * n_heads)),
            cache: Cache(1),
        };
        let spec = [
            CacheSpec::State(StateShape::Rows { n: 1, cols: 3 }),
            CacheSpec::State(op.state_shape()),
        ];
        let mut seed = 155;
        let mut results = run_steps(b, &spec, out, &mut |b, spans| {
            seed += 1;
            b.write(all.buf, &Numbers::new(seed).floats(5 * all.len));
            b.state_space(op, spans);
        });
        let sequence = b.new_sequence(&spec);
        b.write(all.buf, &Numbers::new(170).floats(LONG * all.len));
        for (rows, position) in [(0..LONG, 0), (3..4, LONG)] {
            b.state_space(op, &[Span::new(sequence, rows.clone(), position)]);
            results.extend(read(b, out.buf, rows.end));
        }
        results
    });
}

/// Steps of a few rows, then one of more rows than any kernel takes at once, and a last row that
/// follows it.
fn delta_rule(suite: &Suite<'_>, shape: DeltaShape) {
    let DeltaShape { n_k_heads, n_v_heads, k_dim, v_dim, order, decay } = shape;
    suite.case(&format!("delta_rule {shape}"), &|b| {
        let (k_cols, v_cols) = (n_k_heads * k_dim, n_v_heads * v_dim);
        let qkv = filled(b, LONG, 2 * k_cols + v_cols, 50);
        let out = filled(b, LONG, v_cols, 51);
        let op = DeltaRule {
            out: out.heads(n_v_heads),
            q: qkv.slice(0, k_cols).heads(n_k_heads),
            k: qkv.slice(k_cols, k_cols).heads(n_k_heads),
            v: qkv.slice(2 * k_cols, v_cols).heads(n_v_heads),
            order,
            decay,
            a: filled(b, LONG, shape.n_decays(), 52),
            b: filled(b, LONG, n_v_heads, 53),
            of_heads: shape.of_heads(b, [54, 55]),
            cache: Cache(1),
        };
        let spec = [
            CacheSpec::State(StateShape::Rows { n: 1, cols: 3 }),
            CacheSpec::State(StateShape::Matrices { n: n_v_heads, rows: v_dim, cols: k_dim }),
        ];
        let mut seed = 56;
        let mut results = run_steps(b, &spec, out, &mut |b, spans| {
            seed += 1;
            b.write(qkv.buf, &Numbers::new(seed).floats(5 * qkv.len));
            b.delta_rule(op, spans);
        });
        b.write(qkv.buf, &Numbers::new(seed + 1).floats(LONG * qkv.len));
        let sequence = b.new_sequence(&spec);
        for (rows, position) in [(0..LONG, 0), (3..4, LONG)] {
            b.delta_rule(op, &[Span::new(sequence, rows.clone(), position)]);
            results.extend(read(b, out.buf, rows.end));
        }
        results
    });
}

fn delta_net(suite: &Suite<'_>, shape: DeltaShape, is_in_place: bool) {
    let DeltaShape { n_k_heads, n_v_heads, k_dim, v_dim, order, decay } = shape;
    suite.case(&format!("delta_net {shape} {is_in_place}"), &|b| {
        let (k_cols, v_cols) = (n_k_heads * k_dim, n_v_heads * v_dim);
        let channels = 2 * k_cols + v_cols;
        let n_decays = shape.n_decays();
        let n_behind = if decay == Decay::Head { 0 } else { n_v_heads };
        let inputs = filled(b, 5, channels + n_behind, 60);
        let x = inputs.slice(0, channels);
        let qkv = filled(b, 5, channels, 61);
        let mixed = filled(b, 5, v_cols, 62).heads(n_v_heads);
        let out = if is_in_place { mixed } else { filled(b, 5, v_cols, 63).heads(n_v_heads) };
        let n_with = if decay == Decay::Head { n_v_heads } else { v_cols };
        let gates = filled(b, 5, n_decays + n_with, 64);
        let kernel = 3;
        let weight = b.load_vector(&Numbers::new(65).floats(channels * kernel));
        let norm_weight = b.load_vector(&Numbers::new(66).floats(v_dim));
        let with = gates.slice(n_decays, n_with);
        // Where columns decay, strengths stand behind what is convolved.
        let (strengths, gate) = match decay {
            Decay::Head => (with, filled(b, 5, v_cols, 67)),
            _ => (inputs.slice(channels, n_v_heads), with),
        };
        let gate = gate.heads(n_v_heads);
        let function = if n_v_heads == 2 { GateFunction::Sigmoid } else { GateFunction::Silu };
        let delta = DeltaRule {
            out: mixed,
            q: qkv.slice(0, k_cols).heads(n_k_heads),
            k: qkv.slice(k_cols, k_cols).heads(n_k_heads),
            v: qkv.slice(2 * k_cols, v_cols).heads(n_v_heads),
            order,
            decay,
            a: gates.slice(0, n_decays),
            b: strengths,
            of_heads: shape.of_heads(b, [68, 69]),
            cache: Cache(1),
        };
        let norm = RmsNorm { out, x: mixed, weight: norm_weight, eps: 1e-6 };
        let op = DeltaNet {
            conv: CausalConv { out: qkv, x, weight, bias: None, cache: Cache(0) },
            delta,
            norm: GatedRmsNorm { norm, gate, function, gates_input: false },
        };
        let spec = [
            CacheSpec::State(StateShape::Rows { n: kernel - 1, cols: channels }),
            CacheSpec::State(StateShape::Matrices { n: n_v_heads, rows: v_dim, cols: k_dim }),
        ];
        let out = Cols { buf: out.buf, start: 0, len: v_cols };
        let mut seed = 70;
        run_steps(b, &spec, out, &mut |b, spans| {
            seed += 1;
            b.write(x.buf, &Numbers::new(seed).floats(5 * inputs.len));
            b.delta_net(op, spans);
        })
    });
}
