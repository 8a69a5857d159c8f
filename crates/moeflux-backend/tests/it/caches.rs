//! A sequence that was cut, saved, loaded or split otherwise goes on with the
//! bits of one that was not.

use moeflux_backend::cpu::{Cpu, Isa};
use moeflux_backend::{
    Attention, Buf, Cache, CacheSpec, CausalConv, Cols, Decay, DeltaRule, Heads, KeysValues,
    KvType, Ops, Sequence, Sequences, Span, StateShape, ValueOrder,
};
use proptest::prelude::*;

const MAX_ROWS: usize = 600;
const CHANNELS: usize = 20;
const CONV: Cache = Cache(0);
const KV: Cache = Cache(1);
const DELTA: Cache = Cache(2);
const LATENT: Cache = Cache(3);

fn specs(dtype: KvType) -> [CacheSpec; 4] {
    [
        CacheSpec::State(StateShape::Rows { n: 3, cols: CHANNELS }),
        CacheSpec::Pages { n_heads: 2, k_dim: 5, v_dim: 5, dtype, window: None },
        CacheSpec::State(StateShape::Matrices { n: 2, rows: 5, cols: 5 }),
        CacheSpec::Pages { n_heads: 1, k_dim: 10, v_dim: 0, dtype, window: None },
    ]
}

/// A backend, and ops that touch every kind of cache.
struct Model {
    cpu: Cpu,
    dtype: KvType,
    x: Cols,
    conv: CausalConv,
    attention: Attention,
    latent: Attention,
    delta: DeltaRule,
}

impl Model {
    fn new(dtype: KvType) -> Model {
        let mut cpu = Cpu::new(2, Isa::detect());
        let mut cols = |len: usize| Cols { buf: cpu.alloc(MAX_ROWS, len), start: 0, len };
        let (x, mixed) = (cols(CHANNELS), cols(CHANNELS));
        let outputs: [Buf; 3] = std::array::from_fn(|_| cols(10).buf);
        let heads = |start, n_heads, head_dim| Heads {
            buf: mixed.buf,
            start,
            n_heads,
            head_dim,
            stride: head_dim,
        };
        let out = |i: usize, n_heads| Cols { buf: outputs[i], start: 0, len: 10 }.heads(n_heads);
        let weight: Vec<f32> = (0..4 * CHANNELS).map(|i| (i as f32 * 0.77).sin()).collect();
        let conv =
            CausalConv { out: mixed, x, weight: cpu.load_vector(&weight), bias: None, cache: CONV };
        let attention = Attention {
            out: out(0, 2),
            q: heads(10, 2, 5),
            append: Some(KeysValues { k: heads(0, 2, 5), v: Some(heads(5, 2, 5)) }),
            cache: KV,
            scale: 3.0,
            window: None,
            sinks: None,
            selection: None,
            looks_ahead: false,
            entries: None,
        };
        let latent = Attention {
            out: Heads { head_dim: 5, ..out(1, 2) },
            q: heads(0, 2, 10),
            append: Some(KeysValues { k: heads(7, 1, 10), v: None }),
            cache: LATENT,
            window: Some(40),
            ..attention
        };
        let delta = DeltaRule {
            out: out(2, 2),
            q: heads(0, 1, 5),
            k: heads(5, 1, 5),
            v: heads(10, 2, 5),
            order: ValueOrder::Grouped,
            decay: Decay::Head,
            a: mixed.slice(1, 2),
            b: mixed.slice(4, 2),
            of_heads: cpu.load_vector(&[0.1, -0.3, 0.2, 0.5]),
            cache: DELTA,
        };
        Model { cpu, dtype, x, conv, attention, latent, delta }
    }

    fn sequence(&mut self) -> Sequence {
        self.cpu.new_sequence(&specs(self.dtype))
    }

    /// Runs `positions` of a text as one batch and reads every op's output.
    fn extend(
        &mut self,
        text: u32,
        sequence: Sequence,
        positions: std::ops::Range<usize>,
    ) -> Vec<u32> {
        let rows = positions.len();
        let inputs: Vec<f32> = positions
            .clone()
            .flat_map(|p| (0..CHANNELS).map(move |c| (p * CHANNELS + c) as f32))
            .map(|i| (i * 1.37 + text as f32).sin())
            .collect();
        self.cpu.write(self.x.buf, &inputs);
        let spans = [Span::new(sequence, 0..rows, positions.start)];
        self.cpu.causal_conv(self.conv, &spans);
        self.cpu.attention(self.attention, &spans);
        self.cpu.attention(self.latent, &spans);
        self.cpu.delta_rule(self.delta, &spans);
        let outputs = [self.attention.out, self.latent.out, self.delta.out];
        let read = outputs.map(|cols| self.cpu.read(cols.buf, rows).expect("the processor works"));
        (0..rows)
            .flat_map(|row| read.iter().flat_map(move |values| &values[row * 10..(row + 1) * 10]))
            .map(|value| value.to_bits())
            .collect()
    }

    /// The positions cut into chunks.
    fn extend_by(
        &mut self,
        text: u32,
        sequence: Sequence,
        positions: std::ops::Range<usize>,
        chunk: usize,
    ) -> Vec<u32> {
        let starts = positions.clone().step_by(chunk);
        starts
            .flat_map(|first| self.extend(text, sequence, first..positions.end.min(first + chunk)))
            .collect()
    }

    fn save(
        &mut self,
        sequence: Sequence,
        cache: Cache,
        positions: std::ops::Range<usize>,
    ) -> Vec<u8> {
        let spec = specs(self.dtype)[cache.0 as usize];
        let bytes = self.cpu.save_cache(sequence, cache, positions.clone()).expect("it works");
        assert_eq!(bytes.len(), spec.saved_bytes(&positions), "{spec:?}");
        bytes
    }
}

fn dtypes() -> impl Strategy<Value = KvType> {
    prop_oneof![Just(KvType::F32), Just(KvType::Bf16), Just(KvType::Q8)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn going_on_after_saving_loading_and_cutting_changes_no_bit(
        dtype in dtypes(),
        len in 2usize..MAX_ROWS,
        cut in 0.0f64..1.0,
        split in 0.0f64..1.0,
        stale in 0usize..MAX_ROWS,
        chunks in (1usize..50, 1usize..300),
    ) {
        let mut model = Model::new(dtype);
        let cut = ((len as f64 * cut) as usize).max(1);
        let whole = model.sequence();
        let want = model.extend(1, whole, 0..len);

        // What a snapshot at `cut` holds, keys and values in two parts.
        let first = model.sequence();
        let mut got = model.extend_by(1, first, 0..cut, chunks.0);
        let split = (cut as f64 * split) as usize;
        let mut parts = Vec::new();
        for cache in [KV, LATENT] {
            for positions in [0..split, split..cut] {
                parts.push((cache, positions.clone(), model.save(first, cache, positions)));
            }
        }
        for cache in [CONV, DELTA] {
            parts.push((cache, 0..0, model.save(first, cache, 0..0)));
        }

        // Over whatever another sequence held.
        let second = model.sequence();
        if stale > 0 {
            model.extend(2, second, 0..stale);
        }
        for (cache, positions, bytes) in &parts {
            model.cpu.load_cache(second, *cache, positions.clone(), bytes).unwrap();
            prop_assert_eq!(&model.save(second, *cache, positions.clone()), bytes);
        }
        model.cpu.truncate_sequence(second, cut);
        got.extend(model.extend_by(1, second, cut..len, chunks.1));
        prop_assert!(got == want, "loaded");

        // Back to the cut, then on again.
        model.cpu.truncate_sequence(second, cut);
        for (cache, positions, bytes) in parts.iter().filter(|part| [CONV, DELTA].contains(&part.0)) {
            model.cpu.load_cache(second, *cache, positions.clone(), bytes).unwrap();
        }
        let again = model.extend(1, second, cut..len);
        prop_assert!(again == want[want.len() - again.len()..], "cut");
    }
}

#[test]
fn floats_are_saved_as_they_are() {
    let mut cpu = Cpu::new(1, Isa::SCALAR);
    let (op, spans) = two_rows(&mut cpu);
    let sequence = spans[0].sequence;
    cpu.attention(op, &spans);
    let saved = |cpu: &mut Cpu, positions| {
        let bytes = cpu.save_cache(sequence, Cache(0), positions).expect("it works");
        bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect::<Vec<f32>>()
    };
    assert_eq!(saved(&mut cpu, 0..2), [1.0, 2.0, 5.0, 6.0, 3.0, 4.0, 7.0, 8.0]);
    assert_eq!(saved(&mut cpu, 1..2), [5.0, 6.0, 7.0, 8.0]);
    assert!(saved(&mut cpu, 1..1).is_empty());
}

/// Queries, keys and values of two rows, and an op on them.
fn two_rows(cpu: &mut Cpu) -> (Attention, [Span; 1]) {
    let spec =
        CacheSpec::Pages { n_heads: 2, k_dim: 1, v_dim: 1, dtype: KvType::F32, window: None };
    let sequence = cpu.new_sequence(&[spec]);
    let buf = cpu.alloc(2, 6);
    cpu.write(buf, &[0.5, -0.3, 1.0, 2.0, 3.0, 4.0, 0.7, 0.1, 5.0, 6.0, 7.0, 8.0]);
    let cols = |start| Cols { buf, start, len: 2 }.heads(2);
    let op = Attention {
        out: Cols { buf: cpu.alloc(2, 2), start: 0, len: 2 }.heads(2),
        q: cols(0),
        append: Some(KeysValues { k: cols(2), v: Some(cols(4)) }),
        cache: Cache(0),
        scale: 1.0,
        window: None,
        sinks: None,
        selection: None,
        looks_ahead: false,
        entries: None,
    };
    (op, [Span::new(sequence, 0..2, 0)])
}

#[test]
fn attention_reads_keys_and_values_that_another_op_has_appended() {
    let mut cpu = Cpu::new(2, Isa::detect());
    let (op, spans) = two_rows(&mut cpu);
    cpu.attention(op, &spans);
    let want = cpu.read(op.out.buf, 2).unwrap();
    let out = Cols { buf: cpu.alloc(2, 2), start: 0, len: 2 }.heads(2);
    cpu.attention(Attention { out, append: None, ..op }, &spans);
    assert_eq!(cpu.read(out.buf, 2).unwrap(), want);
    assert!(want.iter().all(|value| *value != 0.0), "{want:?}");
}

#[test]
#[should_panic(expected = "another op has appended")]
fn attention_needs_keys_and_values() {
    let mut cpu = Cpu::new(1, Isa::SCALAR);
    let (op, spans) = two_rows(&mut cpu);
    cpu.attention(Attention { append: None, ..op }, &spans);
}

#[test]
#[should_panic(expected = "too many")]
fn refuses_more_bytes_than_positions() {
    let mut model = Model::new(KvType::Q8);
    let sequence = model.sequence();
    model.extend(1, sequence, 0..3);
    let bytes = model.save(sequence, KV, 0..3);
    model.cpu.load_cache(sequence, KV, 0..2, &bytes).unwrap();
}
