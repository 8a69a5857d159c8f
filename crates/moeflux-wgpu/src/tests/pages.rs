//! Sequences that attend in one kernel, and the pages that they share.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use moeflux_backend::{
    Attention, Buf, Cache, CacheSpec, Cols, DeviceError, ExpertResidency, GatedAttention,
    KeysValues, KvType, Ops, RopePairs, RopeSpec, Sequence, Sequences, Span, Vector,
};

use super::context;
use crate::Context;
use crate::backend::new_backend;
use crate::device::adapter::enumerate;
use crate::memory::caches::pages::PAGE;
use crate::state::gpu::Wgpu;

#[derive(Clone, Copy, Debug)]
struct Shape {
    dtype: KvType,
    /// 0 where values are the first floats of keys.
    v_dim: usize,
    out_dim: usize,
    window: Option<usize>,
    has_sinks: bool,
}

const PLAIN: Shape =
    Shape { dtype: KvType::F32, v_dim: 24, out_dim: 24, window: None, has_sinks: false };

const N_HEADS: usize = 6;
const N_KV_HEADS: usize = 2;
const K_DIM: usize = 40;

/// Most rows of a step.
const ROWS: usize = 900;

/// A layer, and what it writes.
struct Bench {
    b: Wgpu,
    op: GatedAttention,
    inputs: Vec<Cols>,
    out: Buf,
    spec: CacheSpec,
    /// Where each sequence is.
    sequences: Vec<(Sequence, usize)>,
}

/// Inputs of a row, whatever batch it is in.
fn floats(seed: usize, n: usize) -> impl Iterator<Item = f32> {
    (0..n).map(move |i| ((i as f32 + 1.0) * 0.618 + (seed % 1009) as f32 * 1.7).sin() * 2.0)
}

impl Bench {
    fn new(mut b: Wgpu, shape: Shape) -> Bench {
        let Shape { dtype, v_dim, out_dim, window, has_sinks } = shape;
        let cols = |b: &mut Wgpu, len| Cols { buf: b.alloc(ROWS, len), start: 0, len };
        let (q, k) = (cols(&mut b, N_HEADS * K_DIM), cols(&mut b, N_KV_HEADS * K_DIM));
        let v = (v_dim > 0).then(|| cols(&mut b, N_KV_HEADS * v_dim));
        let [gate, out] = [0; 2].map(|_| cols(&mut b, N_HEADS * out_dim));
        let sinks: Option<Vector> =
            has_sinks.then(|| b.load_vector(&floats(7, N_HEADS).collect::<Vec<_>>()));
        let attention = Attention {
            out: out.heads(N_HEADS),
            q: q.heads(N_HEADS),
            append: Some(KeysValues {
                k: k.heads(N_KV_HEADS),
                v: v.map(|buf| buf.heads(N_KV_HEADS)),
            }),
            cache: Cache(0),
            scale: 0.05,
            window,
            sinks,
            selection: None,
            looks_ahead: false,
            entries: None,
        };
        let inv_freq = vec![0.3, 0.05];
        let rope = b.load_rope(RopeSpec {
            inv_freq,
            pairs: RopePairs::Halves,
            scale: 1.0,
            parts: Vec::new(),
        });
        let op = GatedAttention {
            v_norm: None,
            q_norm: None,
            k_norm: None,
            rope,
            attention,
            gate: Some(gate.heads(N_HEADS)),
        };
        let inputs = [q, k, gate].into_iter().chain(v).collect();
        let spec =
            CacheSpec::Pages { n_heads: N_KV_HEADS, k_dim: K_DIM, v_dim, dtype, window: None };
        Bench { b, op, inputs, out: out.buf, spec, sequences: Vec::new() }
    }

    fn begin(&mut self, n: usize) {
        for _ in 0..n {
            self.sequences.push((self.b.new_sequence(&[self.spec]), 0));
        }
    }

    fn end(&mut self, nth: usize) {
        self.b.drop_sequence(self.sequences[nth].0);
    }

    fn go_back(&mut self, nth: usize, len: usize) {
        let (sequence, position) = &mut self.sequences[nth];
        self.b.truncate_sequence(*sequence, len);
        *position = len;
    }

    /// Takes what a sequence knows elsewhere and back.
    fn save_and_load(&mut self, nth: usize) {
        let (sequence, position) = self.sequences[nth];
        let saved = self.b.save_cache(sequence, Cache(0), 0..position).expect("the device works");
        self.b.clear_sequence(sequence);
        self.b.load_cache(sequence, Cache(0), 0..position, &saved).unwrap();
    }

    /// The bits of this many rows of some sequences, and how many kernels they took.
    fn step(&mut self, parts: &[(usize, usize)]) -> (Vec<Vec<u32>>, u64) {
        let mut spans = Vec::new();
        let mut rows = Vec::new();
        for (nth, n) in parts {
            let (sequence, position) = &mut self.sequences[*nth];
            let first = rows.len();
            rows.extend((*position..*position + n).map(|row| 1000 * nth + row));
            spans.push(Span::new(*sequence, first..rows.len(), *position));
            *position += n;
        }
        for (i, input) in self.inputs.iter().enumerate() {
            let values = rows.iter().flat_map(|row| floats(row + 31 * i, input.len));
            self.b.write(input.buf, &values.collect::<Vec<_>>());
        }
        let kernels = |b: &Wgpu| b.counters().stats().kernels;
        let before = kernels(&self.b);
        self.b.gated_attention(self.op, &spans);
        let bits = self.b.read(self.out, rows.len()).expect("the device works");
        let n_kernels = kernels(&self.b) - before;
        let width = bits.len() / rows.len();
        let of_span = |span: &Span| &bits[span.rows.start * width..span.rows.end * width];
        let of_span = |span: &Span| of_span(span).iter().map(|value| value.to_bits()).collect();
        (spans.iter().map(of_span).collect(), n_kernels)
    }
}

/// Checks that sequences give in one step what each gives in a separate step.
fn check(together: &mut Bench, alone: &mut Bench, parts: &[(usize, usize)]) {
    let (got, _) = together.step(parts);
    for (part, got) in parts.iter().zip(got).filter(|((_, n), _)| *n > 0) {
        let (want, _) = alone.step(&[*part]);
        assert!(want[0].iter().any(|bits| f32::from_bits(*bits).abs() > 1e-6));
        assert!(want[0] == got, "sequence {} of {parts:?}", part.0);
    }
}

#[test]
fn sequences_attend_together_as_each_alone() {
    let Some(context) = context() else { return };
    for shape in [
        PLAIN,
        Shape { dtype: KvType::Bf16, window: Some(100), ..PLAIN },
        Shape { dtype: KvType::Q8, has_sinks: true, ..PLAIN },
        Shape { v_dim: 0, out_dim: 33, ..PLAIN },
        Shape { v_dim: 64, out_dim: 64, has_sinks: true, ..PLAIN },
    ] {
        let open = || Bench::new(new_backend(Arc::clone(&context), None), shape);
        let mut both = [open(), open()];
        both.iter_mut().for_each(|text| text.begin(12));
        // Of every length about those of tiles and pages; many rows next to few.
        let lengths = [1, 63, 64, 65, PAGE, PAGE + 1, 5, 3 * PAGE - 1, 0, 2, 400, 7];
        let [together, alone] = &mut both;
        for (nth, n) in lengths.into_iter().enumerate().filter(|(_, n)| *n > 0) {
            check(together, alone, &[(nth, n)]);
        }
        let one_each: Vec<_> = (0..12).map(|nth| (nth, 1)).collect();
        check(together, alone, &one_each);
        check(together, alone, &[(11, 1), (3, 0), (2, 70), (0, 3), (9, 1), (4, 600), (1, 1)]);
        for text in [&mut *together, &mut *alone] {
            text.go_back(7, PAGE);
            text.go_back(10, 3);
            text.save_and_load(5);
        }
        // Its pages are another's from now on.
        together.end(4);
        check(together, alone, &[(7, PAGE + 3), (10, 1), (5, 1), (8, 130)]);
        check(together, alone, &[(5, 2), (6, 1), (7, 1), (8, 1), (10, 1)]);
    }
}

#[test]
fn sequences_that_attend_together_take_the_kernels_of_one() {
    let Some(context) = context() else { return };
    // Three pages a slab.
    let shape = Shape { dtype: KvType::Bf16, v_dim: 64, out_dim: 64, ..PLAIN };
    let mut bench = Bench::new(new_backend(context, None), shape);
    bench.begin(3);
    for nth in 0..3 {
        bench.step(&[(nth, 70)]);
        // Keys and values are stored, attended to tile by tile, and tiles put together.
        assert_eq!(bench.step(&[(nth, 1)]).1, 3);
    }
    assert_eq!(bench.step(&[(0, 1), (1, 1), (2, 1)]).1, 3);
    // A second page of one of them is in the next slab.
    bench.step(&[(1, PAGE)]);
    assert_eq!(bench.step(&[(0, 1), (1, 1), (2, 1)]).1, 4 + 1);
}

#[test]
fn who_finds_no_memory_for_a_page_says_so_and_goes_on_when_there_is_some() {
    if context().is_none() {
        return;
    }
    // One that no other test shares.
    let context = Context::open_anew(&enumerate()[0]).unwrap();
    let mut bench = Bench::new(new_backend(Arc::clone(&context), None), PLAIN);
    bench.begin(2);
    let want = bench.step(&[(0, PAGE + 1)]).0;
    context.refused.store(0, Ordering::Relaxed);
    let (sequence, _) = bench.sequences[1];
    let span = Span::new(sequence, 0..PAGE + 1, 0);
    bench.b.gated_attention(bench.op, &[span]);
    let err = bench.b.read(bench.out, 1).unwrap_err();
    assert!(matches!(err, DeviceError::OutOfMemory { .. }), "{err}");
    context.refused.store(u64::MAX, Ordering::Relaxed);
    bench.step(&[(1, 0), (0, 1)]);
    bench.go_back(0, 0);
    assert_eq!(bench.step(&[(0, PAGE + 1)]).0, want);
}

#[test]
fn pages_go_into_another_slab_where_one_has_no_memory_to_grow() {
    if context().is_none() {
        return;
    }
    // One that no other test shares.
    let context = Context::open_anew(&enumerate()[0]).unwrap();
    let page_bytes = (4 * PAGE * N_KV_HEADS * (K_DIM + PLAIN.v_dim)) as u64;
    let [want, got] = [(u64::MAX, 1), (2 * page_bytes, 2)].map(|(refused, n_slabs)| {
        let mut bench = Bench::new(new_backend(Arc::clone(&context), None), PLAIN);
        bench.begin(1);
        bench.step(&[(0, PAGE)]);
        context.refused.store(refused, Ordering::Relaxed);
        let bits = bench.step(&[(0, 1)]).0;
        assert_eq!(bench.b.pools.n_slabs(), n_slabs);
        bits
    });
    assert_eq!(got, want);
}

#[test]
fn memory_that_no_sequence_has_any_more_is_given_back() {
    let Some(context) = context() else { return };
    // One page a slab.
    let shape = Shape { v_dim: 64, out_dim: 64, ..PLAIN };
    let mut bench = Bench::new(new_backend(context, None), shape);
    bench.begin(3);
    let n_slabs = |bench: &Bench| bench.b.pools.n_slabs();
    assert_eq!(n_slabs(&bench), 0);
    for nth in 0..3 {
        bench.step(&[(nth, PAGE + 1)]);
    }
    assert_eq!(n_slabs(&bench), 6);
    bench.go_back(1, PAGE);
    bench.end(0);
    assert_eq!(n_slabs(&bench), 3);
    bench.step(&[(2, PAGE)]);
    assert_eq!(n_slabs(&bench), 4);
    [1, 2].iter().for_each(|nth| bench.end(*nth));
    assert_eq!(n_slabs(&bench), 0);
}
