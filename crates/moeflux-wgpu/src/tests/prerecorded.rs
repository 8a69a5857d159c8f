//! Steps that are recorded before their tokens are known.

use std::sync::Arc;

use moeflux_backend::{
    ActivationPrecision, Backend, Cache, CacheSpec, CausalConv, Cols, Decay, DeltaNet, DeltaRule,
    ExpertResidency, GateFunction, GatedRmsNorm, LogitsExtras, Ops, PrerecordedStep, Recording,
    RmsNorm, Sequence, Sequences, Span, StateShape, ValueOrder, Weight,
};
use moeflux_core::TokenId;
use moeflux_core::quant::{Affine, Float, MatrixFormat};

use super::{context, matrix};
use crate::Context;
use crate::backend::new_backend;
use crate::state::gpu::Wgpu;

/// An embedding, a delta net and a head, for some sequences.
struct Model {
    table: Weight,
    x: Cols,
    op: DeltaNet,
    head: Weight,
    specs: [CacheSpec; 2],
    sequences: Vec<Sequence>,
}

impl Model {
    fn new(b: &mut Wgpu, n_sequences: usize) -> Model {
        let (n_k_heads, n_v_heads, dim, kernel) = (2, 4, 64, 4);
        let (k_cols, v_cols) = (n_k_heads * dim, n_v_heads * dim);
        let channels = 2 * k_cols + v_cols;
        let cols = |b: &mut Wgpu, len| Cols { buf: b.alloc(n_sequences, len), start: 0, len };
        let (x, qkv, out) =
            (cols(b, channels + 2 * n_v_heads + v_cols), cols(b, channels), cols(b, v_cols));
        let floats = |n| (0..n).map(|i: usize| (i as f32 * 0.618).sin()).collect::<Vec<_>>();
        let vector = |b: &mut Wgpu, n| b.load_vector(&floats(n));
        let delta = DeltaRule {
            out: out.heads(n_v_heads),
            q: qkv.slice(0, k_cols).heads(n_k_heads),
            k: qkv.slice(k_cols, k_cols).heads(n_k_heads),
            v: qkv.slice(2 * k_cols, v_cols).heads(n_v_heads),
            order: ValueOrder::Grouped,
            decay: Decay::Head,
            a: x.slice(channels, n_v_heads),
            b: x.slice(channels + n_v_heads, n_v_heads),
            of_heads: vector(b, 2 * n_v_heads),
            cache: Cache(1),
        };
        let norm = RmsNorm { out: delta.out, x: delta.out, weight: vector(b, dim), eps: 1e-6 };
        let gate = x.slice(channels + 2 * n_v_heads, v_cols).heads(n_v_heads);
        let (taps, input) = (vector(b, kernel * channels), x.slice(0, channels));
        let op = DeltaNet {
            conv: CausalConv { out: qkv, x: input, weight: taps, bias: None, cache: Cache(0) },
            delta,
            norm: GatedRmsNorm { norm, gate, function: GateFunction::Silu, gates_input: false },
        };
        let format = MatrixFormat::Affine(Affine::new(4, 64, Float::BF16));
        let table =
            matrix(b, MatrixFormat::Dense(Float::BF16), 50, x.len, ActivationPrecision::F32);
        let head = matrix(b, format, 40, v_cols, ActivationPrecision::Int16);
        let specs = [
            CacheSpec::State(StateShape::Rows { n: kernel - 1, cols: channels }),
            CacheSpec::State(StateShape::Matrices { n: n_v_heads, rows: dim, cols: dim }),
        ];
        let sequences = (0..n_sequences).map(|_| b.new_sequence(&specs)).collect();
        Model { table, x, op, head, specs, sequences }
    }

    fn out(&self) -> Cols {
        let out = self.op.delta.out;
        Cols { buf: out.buf, start: 0, len: out.n_heads * out.head_dim }
    }

    fn spans(&self, position: usize) -> Vec<Span> {
        let span = |(row, sequence)| Span::new(sequence, row..row + 1, position);
        self.sequences.iter().copied().enumerate().map(span).collect()
    }

    fn forward(&self, b: &mut dyn Backend, tokens: &[TokenId], position: usize) {
        b.embed(self.x, self.table, tokens);
        b.delta_net(self.op, &self.spans(position));
    }

    /// The tokens of a step: each sequence begins elsewhere.
    fn tokens(&self, position: usize) -> Vec<TokenId> {
        let token = |i| TokenId(TOKENS[(i + position) % TOKENS.len()]);
        (0..self.sequences.len()).map(token).collect()
    }

    /// Bits of the logits; what follows may be recorded ahead, and says whether it
    /// could.
    fn logits(&self, b: &mut Wgpu, next: Option<(usize, bool)>) -> Vec<u32> {
        let n = self.sequences.len();
        let spans = next.map(|(position, _)| self.spans(position));
        let mut record = |b: &mut dyn Backend| {
            let (position, is_whole) = next.expect("it is expected");
            self.forward(b, &vec![TokenId(0); n], position);
            is_whole
        };
        let next_step =
            spans.as_deref().map(|spans| PrerecordedStep { spans, record: &mut record });
        let extras = LogitsExtras { hidden_rows: None, next_step };
        let rows: Vec<usize> = (0..n).collect();
        let logits = b.logits(&rows, self.out(), self.head, extras).expect("the device works");
        logits.into_iter().map(f32::to_bits).collect()
    }

    /// Those of the first steps, none of them ahead.
    fn plain(context: &Arc<Context>, n_sequences: usize) -> Vec<Vec<u32>> {
        let mut b = new_backend(Arc::clone(context), None);
        let model = Model::new(&mut b, n_sequences);
        assert!(!b.replay_step(&model.tokens(0)), "nothing was recorded");
        let step = |i| {
            model.forward(&mut b, &model.tokens(i), i);
            model.logits(&mut b, None)
        };
        (0..TOKENS.len()).map(step).collect()
    }
}

const TOKENS: [u32; 12] = [3, 41, 0, 7, 7, 19, 49, 2, 30, 11, 5, 23];

#[test]
fn a_step_recorded_ahead_has_the_bits_of_any_other_and_leaves_no_trace_where_it_never_runs() {
    let Some(context) = context() else { return };
    // One sequence, and enough of them that their states need several slabs.
    for n_sequences in [1, 6] {
        let want = Model::plain(&context, n_sequences);
        let mut b = new_backend(Arc::clone(&context), None);
        let model = Model::new(&mut b, n_sequences);
        let (mut is_ahead, mut n_ahead) = (false, 0);
        for (i, want) in want.iter().enumerate() {
            // All ways one behind the other: run, dropped, broken off, not offered.
            let next = (i % 5 != 4).then_some((i + 1, i % 5 != 3));
            let tokens = model.tokens(i);
            if is_ahead {
                n_ahead += u64::from(b.replay_step(&tokens));
            } else {
                b.discard_prerecorded();
                assert!(!b.replay_step(&tokens));
                model.forward(&mut b, &tokens, i);
            }
            assert!(model.logits(&mut b, next) == *want, "token {i}");
            is_ahead = matches!(i % 5, 0 | 1);
            if i % 5 == 2 {
                // The output is still that of the last step that ran.
                b.discard_prerecorded();
                assert!(model.logits(&mut b, None) == *want, "token {i} again");
            }
        }
        assert_eq!(n_ahead, 5);
        assert_eq!(b.counters().stats().steps_ahead, n_ahead);
    }
}

#[test]
fn sequences_that_come_and_go_undo_a_step_that_waits() {
    let Some(context) = context() else { return };
    let want = Model::plain(&context, 2);
    let mut b = new_backend(context, None);
    let model = Model::new(&mut b, 2);
    let mut other = None;
    for (i, want) in want.iter().enumerate() {
        assert!(!b.replay_step(&model.tokens(i)));
        model.forward(&mut b, &model.tokens(i), i);
        assert!(model.logits(&mut b, Some((i + 1, true))) == *want, "token {i}");
        // The first one moves all states to another slab, later ones have its room.
        other = match other {
            None => {
                let sequence = b.new_sequence(&model.specs);
                let states = model.specs.iter().zip(0..).filter(|(spec, _)| spec.is_recurrent());
                for (spec, cache) in states {
                    let zeros = vec![0; spec.fixed_bytes()];
                    b.load_cache(sequence, Cache(cache), 0..0, &zeros).unwrap();
                }
                Some(sequence)
            }
            Some(sequence) if i % 3 == 1 => {
                b.clear_sequence(sequence);
                Some(sequence)
            }
            Some(sequence) => {
                b.drop_sequence(sequence);
                None
            }
        };
    }
}
