//! How many operations a second products of many rows reach.
//!
//! `cargo run --release -p moeflux-backend --example products -- [ISA [ROWS [LIMBS]]]`

#![expect(clippy::print_stdout, reason = "a report")]

use std::time::{Duration, Instant};

use moeflux_backend::cpu::matmul::{
    Activations, MatmulJob, OutRows, Quantised, Rounding, RowMap, run_jobs,
};
use moeflux_backend::cpu::{Isa, Pool, SharedMut};
use moeflux_core::quant::{Affine, Float, MatrixFormat, MatrixView};
use moeflux_core::{HostBuf, SplitMix64};

const GROUP: usize = 64;
const ROUNDS: usize = 7;

/// Some matrices of one shape, each with its own rows.
struct Case {
    n_matrices: usize,
    rows: usize,
    cols: usize,
    bits: u8,
    x_rows: usize,
    n_limbs: usize,
}

fn main() {
    let isa = std::env::args().nth(1).map_or(Isa::detect(), |name| {
        Isa::by_name(&name).unwrap_or_else(|| panic!("this machine has no {name}"))
    });
    let only: Option<usize> = std::env::args().nth(2).map(|text| text.parse().expect("rows"));
    let n_limbs = std::env::args().nth(3).map_or(2, |text| text.parse().expect("limbs"));
    println!("{isa:?}; 4 bits, groups of {GROUP}, limbs: {n_limbs}");
    let noise = noise(512 << 20);
    for n_threads in [1, 2] {
        let pool = Pool::new(n_threads);
        for x_rows in [2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 512, 2048] {
            if only.is_some_and(|n| n != x_rows) {
                continue;
            }
            let dense = Case { n_matrices: 1, rows: 8192, cols: 2048, bits: 4, x_rows, n_limbs };
            print!(
                "{n_threads} threads, {x_rows:4} rows: dense {:7.1} GOP/s",
                run(&pool, isa, &dense, &noise)
            );
            if x_rows <= 128 {
                let experts =
                    Case { n_matrices: 128, rows: 1024, cols: 2048, bits: 4, x_rows, n_limbs };
                let down =
                    Case { n_matrices: 128, rows: 2048, cols: 512, bits: 4, x_rows, n_limbs };
                print!(", gate and up of 128 {:7.1}", run(&pool, isa, &experts, &noise));
                print!(", down {:7.1}", run(&pool, isa, &down, &noise));
            }
            println!();
        }
    }
}

fn noise(n: usize) -> HostBuf {
    let mut buf = HostBuf::zeroed(n);
    buf.copy_from_slice(&SplitMix64::new(1).bytes(n));
    buf
}

fn run(pool: &Pool, isa: Isa, case: &Case, noise: &[u8]) -> f64 {
    let Case { n_matrices, rows, cols, bits, x_rows, n_limbs } = *case;
    let affine = Affine::new(bits, GROUP, Float::BF16);
    let format = MatrixFormat::Affine(affine);
    let n_x = n_matrices * x_rows;
    let x: Vec<f32> = (0..n_x * cols).map(|i| (i % 251) as f32 / 125.0 - 1.0).collect();
    let mut quantised = Quantised::default();
    quantised.quantise(
        pool,
        isa,
        Rounding { x: &x, stride: cols, n_rows: n_x, cols, group_size: GROUP, n_limbs },
    );
    let mut out = HostBuf::zeroed(n_x * rows * 4);
    let shared = SharedMut::new(bytemuck::cast_slice_mut(&mut out));
    let params: Vec<u8> = [0x24, 0x3c].repeat(rows * cols / GROUP);
    let bytes = rows * cols * usize::from(bits) / 8;
    let jobs: Vec<MatmulJob<'_>> = (0..n_matrices)
        .map(|i| MatmulJob {
            weight: MatrixView {
                format,
                rows,
                cols,
                weight: &noise[i * bytes..][..bytes],
                scales: &params,
                biases: &params,
            },
            x: Activations::Quantised(&quantised),
            x_rows: RowMap::Range { first: i * x_rows, n: x_rows },
            out: OutRows {
                data: shared,
                stride: rows,
                first_col: 0,
                rows: RowMap::Range { first: i * x_rows, n: x_rows },
            },
        })
        .collect();
    let mut least = Duration::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        run_jobs(pool, isa, &jobs);
        least = least.min(start.elapsed());
    }
    2.0 * (n_x * rows * cols) as f64 / least.as_nanos() as f64
}
