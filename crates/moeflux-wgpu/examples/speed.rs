//! Measures the kernels of a GPU against copies: `speed [--gpu N] [--small]`.
#![expect(clippy::print_stdout, reason = "an example that prints a table")]

use std::sync::Arc;
use std::time::Instant;

use moeflux_backend::{
    Activation, Backend, Buf, Cols, ExpertCall, ExpertRow, Experts, HostMatrix, Inputs, Projection,
    Route, Scoring, Weight,
};
use moeflux_core::quant::{Affine, Float, MatrixFormat};
use moeflux_core::{
    Expert, ExpertId, ExpertKey, ExpertLayout, ExpertMemory, GateUp, HostBuf, LayerIdx,
    MatrixLayout, PartSpan,
};
use moeflux_wgpu::{Context, Wgpu};

const FORMAT: MatrixFormat =
    MatrixFormat::Affine(Affine { bits: 4, group_size: 64, params: Float::BF16 });

/// Runs of which the best counts.
const ROUNDS: usize = 5;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let at = args.iter().position(|it| it == "--gpu");
    let index = at.and_then(|it| args.get(it + 1)).and_then(|it| it.parse().ok());
    let is_small = args.iter().any(|it| it == "--small");
    let context = match Context::open(index) {
        Ok(context) => context,
        Err(err) => return println!("{err}"),
    };
    println!("{:?}", context.facts());
    let scale = if is_small { 64 } else { 1 };
    let mut b = Wgpu::new(Arc::clone(&context), None);
    let copy = b.copy_gb_s((1 << 30) / scale as u64).expect("the device works");
    println!("copy: {copy:.0} GB/s");
    round_trips(&mut b);
    drop(b);
    let fresh = || Wgpu::new(Arc::clone(&context), None);
    println!("\nmatrix-vector, 4 bits, groups of 64, one row\n  columns  inputs   GB/s  of copy");
    for cols in [512, 2048, 4096, 7168] {
        for inputs in [Inputs::Int16, Inputs::Int8, Inputs::Full] {
            let gb_s = matvec(&mut fresh(), cols, (256 << 20) / scale, inputs);
            let share = 100.0 * gb_s / copy;
            println!("  {cols:>7}  {:<6} {gb_s:>6.0}  {share:>5.1} %", format!("{inputs:?}"));
        }
    }
    println!(
        "\nexperts, 4 bits, one row, K in one dispatch\n  shape         K  µs a layer   GB/s  of copy"
    );
    for (name, hidden, inner, k) in
        [("A3B", 2048, 512, 8), ("A17B", 4096, 1024, 10), ("Cogito", 7168, 2048, 8)]
    {
        let n = if is_small { k } else { 16 * k };
        let (seconds, bytes) = experts(&mut fresh(), hidden, inner, n, k);
        let gb_s = bytes / seconds / 1e9;
        let (us, share) = (seconds * 1e6, 100.0 * gb_s / copy);
        println!("  {name:<10} {k:>4}  {us:>10.1} {gb_s:>6.0}  {share:>5.1} %");
    }
    println!("\nprefill products, 4 bits\n  rows  outputs  columns  TFLOP/s");
    for (rows, outputs, cols) in [(512, 4096, 2048), (4096, 4096, 2048), (4096, 7168, 7168)] {
        let rows = rows / if is_small { 16 } else { 1 };
        let outputs = outputs / if is_small { 16 } else { 1 };
        let tflop_s = matmul(&mut fresh(), rows, outputs, cols);
        println!("  {rows:>4}  {outputs:>7}  {cols:>7}  {tflop_s:>7.2}");
    }
}

/// What a layer's read-back costs, and a kernel in a row of many.
fn round_trips(b: &mut Wgpu) {
    let logits = filled(b, 1, 256);
    let scoring = Scoring::Softmax { renormalise: true, scale: 1.0 };
    let route = Route { logits, top_k: 8, scoring };
    let us = best(&mut || {
        for _ in 0..50 {
            b.route(1, route).expect("the device works");
        }
    }) * 1e6;
    println!("route and read back: {:.1} µs", us / 50.0);
    let (x, y) = (filled(b, 1, 2048), filled(b, 1, 2048));
    let us = best(&mut || {
        for _ in 0..1000 {
            b.add(1, y, x);
        }
        wait(b, y.buf);
    }) * 1e6;
    println!("a small kernel among many: {:.2} µs", us / 1000.0);
}

fn wait(b: &mut Wgpu, buf: Buf) {
    b.read(buf, 1).expect("the device works");
}

/// Seconds of the fastest run, after one that does not count.
fn best(run: &mut dyn FnMut()) -> f64 {
    run();
    let times = (0..ROUNDS).map(|_| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    });
    times.fold(f64::INFINITY, f64::min)
}

fn filled(b: &mut Wgpu, rows: usize, width: usize) -> Cols {
    let buf = b.alloc(rows, width);
    let values: Vec<f32> = (0..rows * width).map(|i| (i as f32 * 0.37).sin()).collect();
    b.write(buf, &values);
    Cols { buf, start: 0, len: width }
}

/// Bytes of a pattern; parameters that are small.
fn bytes(len: usize, is_param: bool) -> HostBuf {
    let mut buf = HostBuf::zeroed(len);
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for it in buf[..len].as_chunks_mut::<8>().0 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // 0x3c is the upper half of a BF16 near 0.01.
        let word =
            if is_param { 0x3c00_3c00_3c00_3c00 | state & 0x00ff_00ff_00ff_00ff } else { state };
        *it = word.to_le_bytes();
    }
    buf
}

fn matrix(b: &mut Wgpu, rows: usize, cols: usize, inputs: Inputs) -> Weight {
    let params = || Some(bytes(FORMAT.scale_bytes(rows, cols), true));
    b.load_matrix(HostMatrix {
        rows,
        cols,
        format: FORMAT,
        inputs,
        weight: bytes(rows * FORMAT.row_bytes(cols), false),
        scales: params(),
        biases: params(),
    })
}

fn matvec(b: &mut Wgpu, cols: usize, bytes: usize, inputs: Inputs) -> f64 {
    let rows = (bytes / FORMAT.matrix_bytes(1, cols)).min(1 << 20);
    let n = 4;
    let weights: Vec<Weight> = (0..n).map(|_| matrix(b, rows, cols, inputs)).collect();
    let (x, out) = (filled(b, 1, cols), filled(b, 1, rows));
    let times = 5;
    let seconds = best(&mut || {
        for _ in 0..times {
            for weight in &weights {
                b.project(1, x, &[Projection { weight: *weight, out }]);
            }
        }
        wait(b, x.buf);
    });
    (times * n * FORMAT.matrix_bytes(rows, cols)) as f64 / seconds / 1e9
}

fn matmul(b: &mut Wgpu, rows: usize, outputs: usize, cols: usize) -> f64 {
    let weight = matrix(b, outputs, cols, Inputs::Int16);
    let (x, out) = (filled(b, rows, cols), filled(b, rows, outputs));
    let times = 5;
    let seconds = best(&mut || {
        for _ in 0..times {
            b.project(rows, x, &[Projection { weight, out }]);
        }
        wait(b, out.buf);
    });
    2.0 * (times * rows * outputs * cols) as f64 / seconds / 1e12
}

fn expert(id: usize, layout: &Arc<ExpertLayout>) -> Arc<Expert> {
    let memory = ExpertMemory::Owned { buf: bytes(layout.record_bytes(), true), starts: vec![0] };
    let id = u16::try_from(id).expect("few experts");
    let key = ExpertKey { layer: LayerIdx(0), expert: ExpertId(id) };
    Arc::new(Expert { key, layout: Arc::clone(layout), memory })
}

fn layout(hidden: usize, inner: usize) -> ExpertLayout {
    let mut at = 0;
    let mut part = |len| {
        let span = PartSpan { extent: 0, offset: at, len };
        at += len;
        span
    };
    let mut matrix = |rows, cols| MatrixLayout {
        rows,
        cols,
        format: FORMAT,
        weight: part(rows * FORMAT.row_bytes(cols)),
        scales: part(FORMAT.scale_bytes(rows, cols)),
        biases: part(FORMAT.bias_bytes(rows, cols)),
    };
    let (gate, up) = (matrix(inner, hidden), matrix(inner, hidden));
    let down = matrix(hidden, inner);
    ExpertLayout { extents: vec![at], gate_up: GateUp::Split { gate, up }, down }
}

/// Seconds of a layer of `k` of `n` experts that the device holds, and the bytes read.
fn experts(b: &mut Wgpu, hidden: usize, inner: usize, n: usize, k: usize) -> (f64, f64) {
    let layout = Arc::new(layout(hidden, inner));
    let all: Vec<Arc<Expert>> = (0..n).map(|id| expert(id, &layout)).collect();
    let (x, out) = (filled(b, 1, hidden), filled(b, k, hidden));
    let row = |slot| ExpertRow { row: 0, slot };
    let layers: Vec<Vec<ExpertCall>> = all
        .chunks(k)
        .map(|it| {
            let calls = it.iter().zip(0..);
            calls.map(|(it, i)| ExpertCall { expert: Arc::clone(it), rows: vec![row(i)] }).collect()
        })
        .collect();
    let times = 10;
    let seconds = best(&mut || {
        for calls in (0..times).flat_map(|_| &layers) {
            let (inputs, activation) = (Inputs::Int16, Activation::Swiglu);
            b.experts(Experts { out: out.buf, x, inputs, activation, biases: None, calls });
        }
        wait(b, out.buf);
    });
    (seconds / (times * layers.len()) as f64, (k * layout.record_bytes()) as f64)
}
