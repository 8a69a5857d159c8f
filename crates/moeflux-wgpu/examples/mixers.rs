//! Measures attention and the delta net of Qwen3.6-35B-A3B on a GPU, as decode
//! has them: `mixers [--gpu N] [--small]`. `--small` is for software devices.
#![expect(clippy::print_stdout, reason = "an example that prints tables")]

use std::sync::Arc;

use moeflux_backend::{
    Attention, Cache, CacheSpec, CausalConv, Cols, Decay, DeltaNet, DeltaRule, GateFunction,
    GatedAttention, GatedRmsNorm, Heads, KeysValues, KvType, Ops, Recording, RmsNorm, RopePairs,
    RopeSpec, Sequence, Sequences, Span, StateShape, ValueOrder,
};
use moeflux_wgpu::{Context, Wgpu, new_backend};

/// Bytes of caches that measurements go round, so that none stays close to the
/// device's cores: in decode weights pass in between.
const CYCLED: usize = 160 << 20;

/// Most sequences of a measurement.
const SEQUENCES: usize = 40;

/// Runs that are recorded before the device begins, and on software devices.
const RUNS: usize = 80;
const FEW_RUNS: usize = 2;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let at = args.iter().position(|arg| arg == "--gpu");
    let index = at.and_then(|at| args.get(at + 1)).and_then(|index| index.parse().ok());
    let context = match Context::open(index) {
        Ok(context) => context,
        Err(err) => return println!("{err}"),
    };
    println!("{:?}", context.facts());
    let contexts: &[usize] = if is_small() { &[100, 130] } else { &[128, 640, 4096, 32_768] };
    println!("\nattention of a layer, stored and attended, µs a step");
    for (dtype, n_rows) in
        [(KvType::F32, 1), (KvType::F32, 4), (KvType::F32, 16), (KvType::Bf16, 1), (KvType::Q8, 1)]
    {
        for &position in contexts {
            attention(&context, dtype, n_rows, position);
        }
    }
    println!("\nthe rest of mixers, µs a step");
    for n_rows in [1, 4] {
        others(&context, n_rows);
    }
}

fn cols(b: &mut Wgpu, rows: usize, len: usize) -> Cols {
    let buf = b.alloc(rows, len);
    let values: Vec<f32> = (0..rows * len).map(|i| (i as f32 * 0.37).sin()).collect();
    b.write(buf, &values);
    Cols { buf, start: 0, len }
}

fn is_small() -> bool {
    std::env::args().any(|arg| arg == "--small")
}

/// Prints the time of a run by itself, and of its kernels with what noting the
/// time of each costs.
fn measure(b: &mut Wgpu, name: &str, run: &mut dyn FnMut(&mut Wgpu, usize)) {
    let n_runs = if is_small() { FEW_RUNS } else { RUNS };
    let seconds = b.best_seconds(n_runs, run).expect("the device works");
    b.time_kernels(true).expect("the device works");
    (0..n_runs).for_each(|i| run(b, i));
    let times = b.time_kernels(false).expect("the device works");
    let each = times.iter().filter(|time| !time.name.starts_with("wait"));
    let each: Vec<String> = each
        .map(|time| format!("{} {:.1}", time.name, time.seconds / time.n as f64 * 1e6))
        .collect();
    println!("  {name:<34} {:>7.1}   with a clock around each: {}", seconds * 1e6, each.join(", "));
}

fn attention(context: &Arc<Context>, dtype: KvType, n_rows: usize, position: usize) {
    let (n_heads, n_kv_heads, dim) = (16, 2, 256);
    let spec =
        CacheSpec::Pages { n_heads: n_kv_heads, k_dim: dim, v_dim: dim, dtype, window: None };
    let mut b = new_backend(Arc::clone(context), None);
    let q = cols(&mut b, n_rows, n_heads * dim).heads(n_heads);
    let [k, v] = [(); 2].map(|()| cols(&mut b, n_rows, n_kv_heads * dim).heads(n_kv_heads));
    let out = cols(&mut b, n_rows, n_heads * dim).heads(n_heads);
    let bytes = spec.bytes_per_position() * (position + n_rows);
    let sequences: Vec<Sequence> =
        (0..(CYCLED / bytes).clamp(1, SEQUENCES)).map(|_| b.new_sequence(&[spec])).collect();
    let op = Attention {
        out,
        q,
        append: Some(KeysValues { k, v: Some(v) }),
        cache: Cache(0),
        scale: 1.0 / 16.0,
        window: None,
        sinks: None,
        selection: None,
        looks_ahead: false,
        entries: None,
    };
    let run = &mut |b: &mut Wgpu, i: usize| {
        let sequence = sequences[i % sequences.len()];
        b.attention(op, &[Span::new(sequence, 0..n_rows, position - n_rows)]);
    };
    measure(&mut b, &format!("{dtype:?}, rows {n_rows}, positions {position}"), run);
}

fn others(context: &Arc<Context>, n_rows: usize) {
    let mut b = new_backend(Arc::clone(context), None);
    gated_attention(&mut b, n_rows);
    delta_net(&mut b, n_rows);
}

fn gated_attention(b: &mut Wgpu, n_rows: usize) {
    let (n_heads, n_kv_heads, head_dim) = (16, 2, 256);
    let inv_freq = (0..32).map(|i| 1e7f32.powf(-(i as f32) / 32.0)).collect();
    let rope =
        b.load_rope(RopeSpec { inv_freq, pairs: RopePairs::Halves, scale: 1.0, parts: Vec::new() });
    let both = cols(b, n_rows, 2 * n_heads * head_dim);
    let part = |start| Heads { buf: both.buf, start, n_heads, head_dim, stride: 2 * head_dim };
    let q = part(0);
    let [k, v] = [(); 2].map(|()| cols(b, n_rows, n_kv_heads * head_dim).heads(n_kv_heads));
    let out = cols(b, n_rows, n_heads * head_dim).heads(n_heads);
    let weight = b.load_vector(&[1.0; 256]);
    let norm = |x| RmsNorm { out: x, x, weight, eps: 1e-6 };
    let op = GatedAttention {
        v_norm: None,
        q_norm: Some(norm(q)),
        k_norm: Some(norm(k)),
        rope,
        attention: Attention {
            out,
            q,
            append: Some(KeysValues { k, v: Some(v) }),
            cache: Cache(0),
            scale: 1.0 / 16.0,
            window: None,
            sinks: None,
            selection: None,
            looks_ahead: false,
            entries: None,
        },
        gate: Some(part(head_dim)),
    };
    let spec = CacheSpec::Pages {
        n_heads: n_kv_heads,
        k_dim: head_dim,
        v_dim: head_dim,
        dtype: KvType::F32,
        window: None,
    };
    let sequences: Vec<Sequence> = (0..SEQUENCES).map(|_| b.new_sequence(&[spec])).collect();
    let span = |i: usize| [Span::new(sequences[i % SEQUENCES], 0..n_rows, 636)];
    measure(b, &format!("whole attention at 636, rows {n_rows}"), &mut |b, i| {
        b.gated_attention(op, &span(i));
    });
    measure(b, &format!("the same in parts, rows {n_rows}"), &mut |b, i| {
        op.run_parts(b, &span(i));
    });
}

fn delta_net(b: &mut Wgpu, n_rows: usize) {
    let (n_k_heads, n_v_heads, dim, kernel) = (16, 32, 128, 4);
    let (k_cols, v_cols) = (n_k_heads * dim, n_v_heads * dim);
    let channels = 2 * k_cols + v_cols;
    let specs = [
        CacheSpec::State(StateShape::Rows { n: kernel - 1, cols: channels }),
        CacheSpec::State(StateShape::Matrices { n: n_v_heads, rows: dim, cols: dim }),
    ];
    let sequences: Vec<Sequence> = (0..SEQUENCES).map(|_| b.new_sequence(&specs)).collect();
    let x = cols(b, n_rows, channels);
    let out = cols(b, n_rows, channels);
    let z = cols(b, n_rows, v_cols).heads(n_v_heads);
    let gates = cols(b, n_rows, 2 * n_v_heads);
    let mixed = cols(b, n_rows, v_cols).heads(n_v_heads);
    let weight = b.load_vector(&vec![0.3; kernel * channels]);
    let of_heads = b.load_vector(&vec![0.1; 2 * n_v_heads]);
    let norm_weight = b.load_vector(&vec![1.0; dim]);
    let conv = CausalConv { out, x, weight, bias: None, cache: Cache(0) };
    let delta = DeltaRule {
        out: mixed,
        q: out.slice(0, k_cols).heads(n_k_heads),
        k: out.slice(k_cols, k_cols).heads(n_k_heads),
        v: out.slice(2 * k_cols, v_cols).heads(n_v_heads),
        order: ValueOrder::Grouped,
        decay: Decay::Head,
        a: gates.slice(0, n_v_heads),
        b: gates.slice(n_v_heads, n_v_heads),
        of_heads,
        cache: Cache(1),
    };
    let norm = RmsNorm { out: mixed, x: mixed, weight: norm_weight, eps: 1e-6 };
    let op = DeltaNet {
        conv,
        delta,
        norm: GatedRmsNorm { norm, gate: z, function: GateFunction::Silu, gates_input: false },
    };
    measure(b, &format!("delta net, rows {n_rows}"), &mut |b, i| {
        let sequence = sequences[i % sequences.len()];
        let spans = [Span::new(sequence, 0..n_rows, 640)];
        b.delta_net(op, &spans);
    });
    measure(b, &format!("delta net in parts, rows {n_rows}"), &mut |b, i| {
        let sequence = sequences[i % sequences.len()];
        op.run_parts(b, &[Span::new(sequence, 0..n_rows, 640)]);
    });
}
