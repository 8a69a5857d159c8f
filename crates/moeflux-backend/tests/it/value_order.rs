//! Value heads that are sorted by their place in the group of a key head give what grouped ones
//! give, in their own order.

use moeflux_backend::cpu::{Cpu, Isa};
use moeflux_backend::{
    Cache, CacheSpec, Cols, Decay, DeltaRule, Ops, Sequences, Span, StateShape, ValueOrder,
};
use moeflux_core::SplitMix64;

const K_HEADS: usize = 3;
const V_HEADS: usize = 6;
const K_DIM: usize = 5;
const V_DIM: usize = 4;
const ROWS: usize = 7;

fn numbers(seed: u64, n: usize) -> Vec<f32> {
    SplitMix64::new(seed).floats(n)
}

/// The grouped head that is at a place of the tiled order.
fn grouped_head(tiled: usize) -> usize {
    let (nth, k_head) = (tiled / K_HEADS, tiled % K_HEADS);
    k_head * (V_HEADS / K_HEADS) + nth
}

/// Rows of heads of `dim` numbers in the tiled order, from grouped ones.
fn tiled(grouped: &[f32], dim: usize) -> Vec<f32> {
    let row = |row: &[f32]| -> Vec<f32> {
        let head = |head| grouped_head(head) * dim..(grouped_head(head) + 1) * dim;
        (0..V_HEADS).flat_map(|at| row[head(at)].to_vec()).collect()
    };
    grouped.chunks_exact(V_HEADS * dim).flat_map(row).collect()
}

/// The outputs of some rows, heads in their own order.
fn run(cpu: &mut Cpu, order: ValueOrder) -> Vec<f32> {
    let in_order = |values: Vec<f32>, dim| match order {
        ValueOrder::Grouped => values,
        ValueOrder::Tiled => tiled(&values, dim),
    };
    let mut buffer = |width: usize, values: Vec<f32>| {
        let buf = cpu.alloc(ROWS, width);
        cpu.write(buf, &values);
        Cols { buf, start: 0, len: width }
    };
    let (k_cols, v_cols) = (K_HEADS * K_DIM, V_HEADS * V_DIM);
    let out = buffer(v_cols, vec![0.0; ROWS * v_cols]);
    let q = buffer(k_cols, numbers(1, ROWS * k_cols)).heads(K_HEADS);
    let k = buffer(k_cols, numbers(2, ROWS * k_cols)).heads(K_HEADS);
    let v = buffer(v_cols, in_order(numbers(3, ROWS * v_cols), V_DIM)).heads(V_HEADS);
    let a = buffer(V_HEADS, in_order(numbers(4, ROWS * V_HEADS), 1));
    let b = buffer(V_HEADS, in_order(numbers(5, ROWS * V_HEADS), 1));
    let [a_log, dt_bias] = [6, 7].map(|seed| in_order(numbers(seed, V_HEADS), 1));
    let of_heads = cpu.load_vector(&[a_log, dt_bias].concat());
    let decay = Decay::Head;
    let out_heads = out.heads(V_HEADS);
    let cache = Cache(0);
    let op = DeltaRule { out: out_heads, q, k, v, order, decay, a, b, of_heads, cache };
    let spec = [CacheSpec::State(StateShape::Matrices { n: V_HEADS, rows: V_DIM, cols: K_DIM })];
    let sequence = cpu.new_sequence(&spec);
    cpu.delta_rule(op, &[Span::new(sequence, 0..ROWS, 0)]);
    cpu.read(out.buf, ROWS).unwrap()
}

#[test]
fn tiled_heads_are_grouped_ones_in_another_order() {
    for n_threads in [1, 3] {
        let mut cpu = Cpu::new(n_threads, Isa::detect());
        let grouped = run(&mut cpu, ValueOrder::Grouped);
        let got = run(&mut cpu, ValueOrder::Tiled);
        assert_eq!(got, tiled(&grouped, V_DIM), "{n_threads} threads");
        assert_ne!(got, grouped);
    }
}
