//! Steps that are recorded before their tokens are known.

use std::sync::Arc;

use moeflux_backend::{
    Ahead, Backend, Cache, CacheSpec, CausalConv, Cols, DeltaNet, DeltaRule, GatedRmsNorm, Inputs,
    RmsNorm, Sequence, Span, Weight,
};
use moeflux_core::TokenId;
use moeflux_core::quant::{Affine, Float, MatrixFormat};

use super::{context, matrix};
use crate::Wgpu;

/// An embedding, a delta net and a head.
#[derive(Clone, Copy)]
struct Model {
    table: Weight,
    x: Cols,
    op: DeltaNet,
    head: Weight,
    sequence: Sequence,
}

impl Model {
    fn new(b: &mut Wgpu) -> Model {
        let (n_k_heads, n_v_heads, dim, kernel) = (2, 4, 64, 4);
        let (k_cols, v_cols) = (n_k_heads * dim, n_v_heads * dim);
        let channels = 2 * k_cols + v_cols;
        let cols = |b: &mut Wgpu, len| Cols { buf: b.alloc(1, len), start: 0, len };
        let (x, qkv, out) =
            (cols(b, channels + 2 * n_v_heads + v_cols), cols(b, channels), cols(b, v_cols));
        let floats = |n| (0..n).map(|i: usize| (i as f32 * 0.618).sin()).collect::<Vec<_>>();
        let vector = |b: &mut Wgpu, n| b.load_vector(&floats(n));
        let delta = DeltaRule {
            out: out.heads(n_v_heads),
            q: qkv.slice(0, k_cols).heads(n_k_heads),
            k: qkv.slice(k_cols, k_cols).heads(n_k_heads),
            v: qkv.slice(2 * k_cols, v_cols).heads(n_v_heads),
            a: x.slice(channels, n_v_heads),
            b: x.slice(channels + n_v_heads, n_v_heads),
            a_log: vector(b, n_v_heads),
            dt_bias: vector(b, n_v_heads),
            cache: Cache(1),
        };
        let norm = RmsNorm { out: delta.out, x: delta.out, weight: vector(b, dim), eps: 1e-6 };
        let gate = x.slice(channels + 2 * n_v_heads, v_cols).heads(n_v_heads);
        let (taps, input) = (vector(b, kernel * channels), x.slice(0, channels));
        let op = DeltaNet {
            conv: CausalConv { out: qkv, x: input, weight: taps, cache: Cache(0) },
            delta,
            norm: GatedRmsNorm { norm, gate },
        };
        let format = MatrixFormat::Affine(Affine { bits: 4, group_size: 64, params: Float::BF16 });
        let table = matrix(b, MatrixFormat::Dense(Float::BF16), 50, x.len, Inputs::Full);
        let head = matrix(b, format, 40, v_cols, Inputs::Int16);
        let sequence = b.new_sequence(&[
            CacheSpec::Conv { channels, kernel },
            CacheSpec::Delta { n_heads: n_v_heads, k_dim: dim, v_dim: dim },
        ]);
        Model { table, x, op, head, sequence }
    }

    fn out(&self) -> Cols {
        let out = self.op.delta.out;
        Cols { buf: out.buf, start: 0, len: out.n_heads * out.head_dim }
    }

    fn span(&self, position: usize) -> Span {
        Span { sequence: self.sequence, rows: 0..1, position }
    }

    fn forward(&self, b: &mut dyn Backend, token: u32, position: usize) {
        b.embed(self.x, self.table, &[TokenId(token)]);
        b.delta_net(self.op, &[self.span(position)]);
    }

    /// Bits of the logits; what follows may be recorded ahead, and says whether it
    /// could.
    fn logits(&self, b: &mut Wgpu, next: Option<(usize, bool)>) -> Vec<u32> {
        let spans = next.map(|it| self.span(it.0));
        let mut record = |b: &mut dyn Backend| {
            let (position, is_whole) = next.expect("it is expected");
            self.forward(b, 0, position);
            is_whole
        };
        let ahead = spans
            .as_slice()
            .first()
            .map(|it| Ahead { spans: std::slice::from_ref(it), record: &mut record });
        let logits = b.logits(&[0], self.out(), self.head, ahead).expect("the device works");
        logits.into_iter().map(f32::to_bits).collect()
    }
}

const TOKENS: [u32; 12] = [3, 41, 0, 7, 7, 19, 49, 2, 30, 11, 5, 23];

#[test]
fn a_step_recorded_ahead_has_the_bits_of_any_other_and_leaves_no_trace_where_it_never_runs() {
    let Some(context) = context() else { return };
    let mut plain = Wgpu::new(Arc::clone(&context), None);
    let model = Model::new(&mut plain);
    let want: Vec<Vec<u32>> = (0..)
        .zip(TOKENS)
        .map(|(i, token)| {
            model.forward(&mut plain, token, i);
            model.logits(&mut plain, None)
        })
        .collect();
    assert!(!plain.run_ahead(&[TokenId(1)]), "nothing was recorded");
    let mut b = Wgpu::new(context, None);
    let model = Model::new(&mut b);
    let (mut is_ahead, mut n_ahead) = (false, 0);
    for (i, token) in TOKENS.into_iter().enumerate() {
        // All ways one behind the other: run, dropped, broken off, not offered.
        let next = (i % 5 != 4).then_some((i + 1, i % 5 != 3));
        if is_ahead {
            n_ahead += u64::from(b.run_ahead(&[TokenId(token)]));
        } else {
            b.drop_ahead();
            assert!(!b.run_ahead(&[TokenId(token)]));
            model.forward(&mut b, token, i);
        }
        assert!(model.logits(&mut b, next) == want[i], "token {i}");
        is_ahead = matches!(i % 5, 0 | 1);
        if i % 5 == 2 {
            // The output is still that of the last step that ran.
            b.drop_ahead();
            assert!(model.logits(&mut b, None) == want[i], "token {i} again");
        }
    }
    assert_eq!(n_ahead, 5);
    assert_eq!(b.counters().expect("it counts").stats().steps_ahead, n_ahead);
}
