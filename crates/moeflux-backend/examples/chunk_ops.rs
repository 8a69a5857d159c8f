//! How long the ops of a chunk take that are no products of matrices, in the
//! shapes of Qwen3.5-35B-A3B.
//!
//! `cargo run --release -p moeflux-backend --example chunk_ops -- [ISA [ROWS [POSITION [OP]]]]`

#![expect(clippy::print_stdout, reason = "a report")]

use std::time::{Duration, Instant};

use moeflux_backend::cpu::matmul::{Quantised, Rounding};
use moeflux_backend::cpu::{Cpu, Isa, Pool};
use moeflux_backend::{
    ActivationPrecision, Attention, Buf, Cache, CacheSpec, CausalConv, Cols, Combine, Decay,
    DeltaNet, DeltaRule, GateFunction, GatedActivation, GatedRmsNorm, Heads, HostMatrix,
    KeysValues, KvType, Ops, RmsNorm, RopePairs, RopeSpec, Route, Scoring, Sequences, Shared, Span,
    StateShape, ValueOrder,
};
use moeflux_core::quant::{Affine, Float, MatrixFormat};
use moeflux_core::{HostBuf, SplitMix64, TokenId};

const HIDDEN: usize = 2048;
const HEAD_DIM: usize = 256;
const TOP_K: usize = 8;
/// How long an op is repeated, at least twice.
const SPENT: Duration = Duration::from_millis(400);

fn main() {
    let arg = |i: usize| std::env::args().nth(i);
    let number = |i, usual: usize| arg(i).map_or(usual, |text| text.parse().expect("a number"));
    let isa = arg(1).map_or(Isa::detect(), |name| Isa::by_name(&name).expect("a name"));
    let n_threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let (rows, position) = (number(2, 512), number(3, 0));
    let only = arg(4).unwrap_or_default();
    println!("{isa:?}, {n_threads} threads, {rows} rows from position {position}: best and median");
    let cpu = Cpu::new(n_threads, isa);
    let mut bench = Bench { cpu, isa, n_threads, rows, position, only };
    bench.delta_rule("delta rule", Decay::Head);
    bench.delta_rule("delta rule, columns", Decay::Columns);
    bench.delta_rule("delta rule, bounded", Decay::Bounded { bound: -5.0 });
    for dtype in [KvType::F32, KvType::Bf16, KvType::Q8] {
        bench.attention(dtype);
    }
    bench.delta_net();
    bench.conv();
    bench.norms();
    bench.elements();
    bench.embed();
    bench.rope();
    bench.route();
    bench.combine();
    bench.rounding();
}

struct Bench {
    cpu: Cpu,
    isa: Isa,
    n_threads: usize,
    rows: usize,
    position: usize,
    only: String,
}

/// Between -1 and 1.
fn noise(n: usize) -> Vec<f32> {
    SplitMix64::new(1).floats(n)
}

impl Bench {
    fn buf(&mut self, width: usize) -> Cols {
        let buf: Buf = self.cpu.alloc(self.rows, width);
        self.cpu.write(buf, &noise(self.rows * width));
        Cols { buf, start: 0, len: width }
    }

    /// Gates of about one, so that what they are applied to does not vanish.
    fn large(&mut self, width: usize) -> Cols {
        let cols = self.buf(width);
        let values: Vec<f32> = noise(self.rows * width).iter().map(|value| value + 10.0).collect();
        self.cpu.write(cols.buf, &values);
        cols
    }

    /// A multiplication and an addition are two operations.
    fn time(&mut self, name: &str, bytes: usize, ops: usize, op: &mut dyn FnMut(&mut Cpu)) {
        if !name.contains(&self.only) {
            return;
        }
        op(&mut self.cpu);
        let (mut times, start) = (Vec::new(), Instant::now());
        while times.len() < 3 || start.elapsed() < SPENT && times.len() < 1000 {
            let start = Instant::now();
            op(&mut self.cpu);
            times.push(start.elapsed().as_secs_f64());
        }
        times.sort_unstable_by(f64::total_cmp);
        let (best, median) = (times[0], times[times.len() / 2]);
        println!(
            "{name:24} {:10.1} us {:10.1} us {:7.1} GB/s {:7.1} GOP/s",
            best * 1e6,
            median * 1e6,
            bytes as f64 / median * 1e-9,
            ops as f64 / median * 1e-9
        );
    }

    fn delta_rule(&mut self, name: &str, decay: Decay) {
        let (n_k, n_v, dim) = (16, 32, 128);
        let n_decays = n_v * decay.len(dim);
        let qkv = self.buf((2 * n_k + n_v) * dim);
        let gates = self.buf(n_decays + n_v);
        let out = self.buf(n_v * dim);
        let op = DeltaRule {
            out: out.heads(n_v),
            q: qkv.slice(0, n_k * dim).heads(n_k),
            k: qkv.slice(n_k * dim, n_k * dim).heads(n_k),
            v: qkv.slice(2 * n_k * dim, n_v * dim).heads(n_v),
            order: ValueOrder::Grouped,
            decay,
            a: gates.slice(0, n_decays),
            b: gates.slice(n_decays, n_v),
            of_heads: self.cpu.load_vector(&noise(n_v + n_decays)),
            cache: Cache(0),
        };
        let spec = CacheSpec::State(StateShape::Matrices { n: n_v, rows: dim, cols: dim });
        let sequence = self.cpu.new_sequence(&[spec]);
        let span = [Span::new(sequence, 0..self.rows, 0)];
        let elements = n_v * dim * dim;
        self.time(name, 8 * elements, 6 * elements * self.rows, &mut |cpu| {
            cpu.delta_rule(op, &span);
        });
    }

    /// In turn on buffers that no cache holds together.
    fn delta_net(&mut self) {
        let (n_k, n_v, dim) = (16, 32, 128);
        let width = (2 * n_k + n_v) * dim;
        let conv = CacheSpec::State(StateShape::Rows { n: 3, cols: width });
        let delta = CacheSpec::State(StateShape::Matrices { n: n_v, rows: dim, cols: dim });
        let sequence = self.cpu.new_sequence(&[conv, delta]);
        let span = [Span::new(sequence, 0..self.rows, 0)];
        let ops: Vec<DeltaNet> = (0..4)
            .map(|_| {
                let (x, qkv, out) = (self.buf(width), self.buf(width), self.buf(n_v * dim));
                let (a, b, z) = (self.buf(n_v), self.buf(n_v), self.buf(n_v * dim));
                let weight = self.cpu.load_vector(&noise(4 * width));
                let conv = CausalConv { out: qkv, x, weight, bias: None, cache: Cache(0) };
                let delta = DeltaRule {
                    out: out.heads(n_v),
                    q: qkv.slice(0, n_k * dim).heads(n_k),
                    k: qkv.slice(n_k * dim, n_k * dim).heads(n_k),
                    v: qkv.slice(2 * n_k * dim, n_v * dim).heads(n_v),
                    order: ValueOrder::Grouped,
                    decay: Decay::Head,
                    a,
                    b,
                    of_heads: self.cpu.load_vector(&noise(2 * n_v)),
                    cache: Cache(1),
                };
                let (x, weight) = (out.heads(n_v), self.cpu.load_vector(&[1.0; 128]));
                let norm = RmsNorm { out: x, x, weight, eps: 1e-6 };
                let norm = GatedRmsNorm {
                    norm,
                    gate: z.heads(n_v),
                    function: GateFunction::Silu,
                    gates_input: false,
                };
                DeltaNet { conv, delta, norm }
            })
            .collect();
        let mut next = 0;
        self.time("delta net", 0, 6 * n_v * dim * dim * self.rows, &mut |cpu| {
            next = (next + 1) % ops.len();
            cpu.delta_net(ops[next], &span);
        });
    }

    fn attention(&mut self, dtype: KvType) {
        let (n_q, n_kv) = (16, 2);
        let both = self.buf(n_q * 2 * HEAD_DIM);
        let q = Heads { buf: both.buf, start: 0, n_heads: n_q, head_dim: HEAD_DIM, stride: 512 };
        let k = self.buf(n_kv * HEAD_DIM);
        let v = self.buf(n_kv * HEAD_DIM);
        let out = self.buf(n_q * HEAD_DIM);
        let op = Attention {
            out: out.heads(n_q),
            q,
            append: Some(KeysValues { k: k.heads(n_kv), v: Some(v.heads(n_kv)) }),
            cache: Cache(0),
            scale: 1.0 / 16.0,
            window: None,
            sinks: None,
            selection: None,
            looks_ahead: false,
            entries: None,
        };
        let spec = CacheSpec::Pages {
            n_heads: n_kv,
            k_dim: HEAD_DIM,
            v_dim: HEAD_DIM,
            dtype,
            window: None,
        };
        let sequence = self.cpu.new_sequence(&[spec]);
        let (rows, position) = (self.rows, self.position);
        if "attention".contains(&self.only) {
            for position in (0..position).step_by(rows) {
                let rows = 0..rows.min(self.position - position);
                self.cpu.attention(op, &[Span::new(sequence, rows, position)]);
            }
        }
        let seen: usize = (0..rows).map(|row| position + row + 1).sum();
        let span = [Span::new(sequence, 0..rows, position)];
        let bytes = 2 * n_kv * dtype.row_bytes(HEAD_DIM) * (position + rows);
        let name = format!("attention {dtype:?}");
        self.time(&name, bytes, 4 * seen * n_q * HEAD_DIM, &mut |cpu| cpu.attention(op, &span));
    }

    fn conv(&mut self) {
        let channels = 8192;
        let (x, out) = (self.buf(channels), self.buf(channels));
        let weight = self.cpu.load_vector(&noise(4 * channels));
        let sequence =
            self.cpu.new_sequence(&[CacheSpec::State(StateShape::Rows { n: 3, cols: channels })]);
        let span = [Span::new(sequence, 0..self.rows, 0)];
        let op = CausalConv { out, x, weight, bias: None, cache: Cache(0) };
        self.time("causal conv", self.rows * channels * 8, 0, &mut |cpu| {
            cpu.causal_conv(op, &span);
        });
    }

    fn norms(&mut self) {
        let rows = self.rows;
        let (x, out) = (self.buf(4096), self.buf(4096));
        let gate = self.large(4096);
        let weight = self.cpu.load_vector(&[0.1; 128]);
        let heads = RmsNorm { out: out.heads(32), x: out.heads(32), weight, eps: 1e-6 };
        let op = GatedRmsNorm {
            norm: heads,
            gate: gate.heads(32),
            function: GateFunction::Silu,
            gates_input: false,
        };
        self.time("gated rms norm", rows * 4096 * 12, 0, &mut |cpu| cpu.gated_rms_norm(rows, op));
        let (x, out) = (x.slice(0, HIDDEN).heads(1), out.slice(0, HIDDEN).heads(1));
        let weight = self.cpu.load_vector(&[1.0; HIDDEN]);
        let op = RmsNorm { out, x, weight, eps: 1e-6 };
        self.time("rms norm", rows * HIDDEN * 8, 0, &mut |cpu| cpu.rms_norm(rows, op));
        let both = self.buf(16 * 2 * HEAD_DIM);
        let q = Heads { buf: both.buf, start: 0, n_heads: 16, head_dim: HEAD_DIM, stride: 512 };
        let weight = self.cpu.load_vector(&[1.0; HEAD_DIM]);
        let op = RmsNorm { out: q, x: q, weight, eps: 1e-6 };
        let bytes = rows * 16 * HEAD_DIM * 8;
        self.time("rms norm of heads", bytes, 0, &mut |cpu| cpu.rms_norm(rows, op));
    }

    fn elements(&mut self) {
        let rows = self.rows;
        let both = self.large(16 * 2 * HEAD_DIM);
        let gate =
            Heads { buf: both.buf, start: HEAD_DIM, n_heads: 16, head_dim: HEAD_DIM, stride: 512 };
        let x = self.buf(16 * HEAD_DIM);
        let bytes = rows * 16 * HEAD_DIM * 12;
        self.time("sigmoid gate", bytes, 0, &mut |cpu| {
            cpu.sigmoid_gate(rows, x.heads(16), gate);
        });
        let (a, b) = (self.buf(512), self.buf(512));
        self.time("swiglu", rows * 512 * 12, 0, &mut |cpu| {
            cpu.activate(rows, GatedActivation::Swiglu, a, a, b);
        });
        let (a, b) = (self.buf(HIDDEN), self.buf(HIDDEN));
        self.time("add", rows * HIDDEN * 12, 0, &mut |cpu| cpu.add(rows, a, b));
    }

    fn embed(&mut self) {
        let affine = Affine::new(4, 64, Float::BF16);
        let format = MatrixFormat::Affine(affine);
        let vocab = 512;
        let bytes = |n| HostBuf::zeroed(n);
        let table = self.cpu.load_matrix(HostMatrix {
            rows: vocab,
            cols: HIDDEN,
            format,
            inputs: ActivationPrecision::Int16,
            weight: bytes(vocab * format.row_bytes(HIDDEN)),
            scales: Some(bytes(format.scale_bytes(vocab, HIDDEN))),
            biases: Some(bytes(format.bias_bytes(vocab, HIDDEN))),
        });
        let tokens: Vec<_> = (0..self.rows).map(|row| TokenId((row * 37 % vocab) as u32)).collect();
        let out = self.buf(HIDDEN);
        self.time("embed", self.rows * HIDDEN * 4, 0, &mut |cpu| cpu.embed(out, table, &tokens));
    }

    fn rope(&mut self) {
        let both = self.buf(16 * 2 * HEAD_DIM);
        let q = Heads { buf: both.buf, start: 0, n_heads: 16, head_dim: HEAD_DIM, stride: 512 };
        let inv_freq = (0..32).map(|pair| 0.6f32.powi(pair)).collect();
        let rope = self.cpu.load_rope(RopeSpec {
            inv_freq,
            pairs: RopePairs::Halves,
            scale: 1.0,
            parts: Vec::new(),
        });
        let sequence = self.cpu.new_sequence(&[]);
        let mut position = 0;
        let rows = self.rows;
        self.time("rope", rows * 16 * 64 * 8, 0, &mut |cpu| {
            cpu.rope(q, rope, &[Span::new(sequence, 0..rows, 0)]);
        });
        self.time("rope, new positions", rows * 16 * 64 * 8, 0, &mut |cpu| {
            position += 1;
            cpu.rope(q, rope, &[Span::new(sequence, 0..rows, position)]);
        });
    }

    fn route(&mut self) {
        let rows = self.rows;
        let logits = self.buf(256);
        let scoring = Scoring::softmax(true);
        let op = Route { logits, top_k: TOP_K, scoring };
        self.time("route", rows * 1024, 0, &mut |cpu| {
            cpu.route(rows, op).expect("the device works");
        });
    }

    fn combine(&mut self) {
        let rows = self.rows;
        let slots = self.cpu.alloc(rows * TOP_K, HIDDEN);
        self.cpu.write(slots, &noise(rows * TOP_K * HIDDEN));
        let (acc, out, gate) = (self.buf(HIDDEN), self.buf(HIDDEN), self.buf(1));
        let weights = vec![0.125; rows * TOP_K];
        let shared = Some(Shared { out, gate: Some(gate) });
        let op = Combine { acc, slots, top_k: TOP_K, weights: &weights, shared };
        self.time("combine", rows * HIDDEN * 4 * 11, 0, &mut |cpu| cpu.combine(rows, op));
    }

    fn rounding(&mut self) {
        let (isa, rows, pool) = (self.isa, self.rows, Pool::new(self.n_threads));
        for cols in [HIDDEN, 512, 4096] {
            let x = noise(rows * cols);
            let mut out = Quantised::default();
            for n_limbs in [1, 2] {
                let rounding =
                    Rounding { x: &x, stride: cols, n_rows: rows, cols, group_size: 64, n_limbs };
                let name = format!("rounding {cols}, {n_limbs} limbs");
                self.time(&name, rows * cols * 4, 0, &mut |_| out.quantise(&pool, isa, rounding));
            }
        }
    }
}
