//! Rows of a delta net by themselves against many together.

use moeflux_backend::{
    Backend, Cache, CacheSpec, CausalConv, Cols, DeltaNet, DeltaRule, GatedRmsNorm, RmsNorm, Span,
};

use super::context;
use crate::Wgpu;

const ROWS: usize = 23;

fn floats(seed: u32, n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i as f32 + 1.0) * 0.618 + seed as f32 * 1.7).sin() * 2.0).collect()
}

/// The bits of all rows, so many a step.
fn bits(b: &mut Wgpu, (k_dim, v_dim): (usize, usize), per_step: usize) -> Vec<u32> {
    let (n_k_heads, n_v_heads, kernel) = (2, 4, 4);
    let (k_cols, v_cols) = (n_k_heads * k_dim, n_v_heads * v_dim);
    let channels = 2 * k_cols + v_cols;
    let cols = |b: &mut Wgpu, len| Cols { buf: b.alloc(ROWS, len), start: 0, len };
    let (x, qkv) = (cols(b, channels), cols(b, channels));
    let (gates, z) = (cols(b, 2 * n_v_heads), cols(b, v_cols));
    let out = cols(b, v_cols);
    let vector = |b: &mut Wgpu, seed, n| b.load_vector(&floats(seed, n));
    let delta = DeltaRule {
        out: out.heads(n_v_heads),
        q: qkv.slice(0, k_cols).heads(n_k_heads),
        k: qkv.slice(k_cols, k_cols).heads(n_k_heads),
        v: qkv.slice(2 * k_cols, v_cols).heads(n_v_heads),
        a: gates.slice(0, n_v_heads),
        b: gates.slice(n_v_heads, n_v_heads),
        a_log: vector(b, 1, n_v_heads),
        dt_bias: vector(b, 2, n_v_heads),
        cache: Cache(1),
    };
    let norm = RmsNorm { out: delta.out, x: delta.out, weight: vector(b, 3, v_dim), eps: 1e-6 };
    let op = DeltaNet {
        conv: CausalConv { out: qkv, x, weight: vector(b, 4, kernel * channels), cache: Cache(0) },
        delta,
        norm: GatedRmsNorm { norm, gate: z.heads(n_v_heads) },
    };
    let specs = [
        CacheSpec::Conv { channels, kernel },
        CacheSpec::Delta { n_heads: n_v_heads, k_dim, v_dim },
    ];
    let sequence = b.new_sequence(&specs);
    let mut all = Vec::new();
    for position in (0..ROWS).step_by(per_step) {
        let n = per_step.min(ROWS - position);
        for (seed, it) in (5..).zip([x, gates, z]) {
            let rows = &floats(seed, ROWS * it.len)[position * it.len..(position + n) * it.len];
            b.write(it.buf, rows);
        }
        b.delta_net(op, &[Span { sequence, rows: 0..n, position }]);
        all.extend(b.read(out.buf, n).expect("the device works").iter().map(|it| it.to_bits()));
    }
    for cache in [Cache(0), Cache(1)] {
        let state = b.save_cache(sequence, cache, 0..ROWS).expect("the device works");
        all.extend(state.as_chunks::<4>().0.iter().map(|it| u32::from_le_bytes(*it)));
    }
    all
}

#[test]
fn rows_of_a_delta_net_have_the_same_bits_alone_and_together() {
    let Some(context) = context() else { return };
    for dims in [(128, 128), (21, 70), (64, 32)] {
        let [together, some, alone] = [ROWS, 3, 1].map(|per_step| {
            bits(&mut Wgpu::new(std::sync::Arc::clone(&context), None), dims, per_step)
        });
        assert!(alone.iter().any(|it| *it != 0), "{dims:?}: nothing but zeros");
        for other in [some, alone] {
            let first = together.iter().zip(&other).position(|it| it.0 != it.1);
            assert_eq!(first, None, "{dims:?}: from the row of that element on");
        }
    }
}
