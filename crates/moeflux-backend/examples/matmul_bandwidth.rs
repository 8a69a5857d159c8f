//! How close the matrix kernels come to the memory's speed.
//!
//! Every line compares within one run: read loop and kernels take turns, and
//! the best of several rounds counts. Bytes are weights, scales and biases.
//!
//! `cargo run --release -p moeflux-backend --example matmul_bandwidth -- [ISA [THREADS [LIMBS [PART [FORMAT]]]]]`
//! with one of the parts memory, cache, columns, many, small and forks, or all, and the formats
//! of one name, such as Q4_K, or all of them.

#![expect(clippy::print_stdout, reason = "a report")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use moeflux_backend::cpu::matmul::{
    Activations, FloatRows, MatmulJob, OutRows, Quantised, Rounding, RowMap, integer_group_size,
    run_jobs,
};
use moeflux_backend::cpu::{Isa, Pool, SharedMut};
use moeflux_core::quant::{
    Affine, BlockType, Float, MatrixFormat, MatrixView, MicroScaled, ScaledBlocks,
};
use moeflux_core::{HostBuf, SplitMix64};

/// A part of the report by its name.
type Part = (&'static str, fn(&Bench));

/// More than any cache.
const MEMORY_BYTES: usize = 384 << 20;
/// Half of a core's second cache here.
const CACHE_BYTES: usize = 512 << 10;
const GROUP: usize = 64;
const ROUNDS: usize = 7;

fn main() {
    let isa = std::env::args().nth(1).map_or(Isa::detect(), |name| {
        Isa::by_name(&name).unwrap_or_else(|| panic!("this machine has no {name}"))
    });
    let n_threads = std::env::args().nth(2).map_or_else(
        || std::thread::available_parallelism().map_or(1, |n| n.get()),
        |n| n.parse().unwrap_or_else(|e| panic!("{n} threads: {e}")),
    );
    let n_limbs = std::env::args()
        .nth(3)
        .map_or(2, |n| n.parse().unwrap_or_else(|e| panic!("{n} limbs: {e}")));
    let bench = Bench { n_limbs, ..Bench::new(isa, n_threads) };
    println!("{isa:?}, one thread and {n_threads}, groups of {GROUP}, {n_limbs} limbs, GB/s");
    let parts: [Part; 6] = [
        ("memory", Bench::memory),
        ("cache", Bench::cache),
        ("columns", Bench::columns),
        ("many", Bench::many_rows),
        ("small", Bench::small),
        ("forks", Bench::forks),
    ];
    let wanted = std::env::args().nth(4);
    for (_, run) in parts
        .iter()
        .filter(|(name, _)| wanted.as_ref().is_none_or(|wanted| wanted == name || wanted == "all"))
    {
        run(&bench);
    }
}

struct Bench {
    isa: Isa,
    one: Pool,
    all: Pool,
    /// In huge pages, as resident weights are.
    noise: HostBuf,
    /// Codes of E4M3.
    e4m3: HostBuf,
    /// Blocks of MXFP4 with exponents as models have them.
    mxfp4: HostBuf,
    /// 0.01 as BF16.
    params: HostBuf,
    /// Limbs of the activations.
    n_limbs: usize,
}

impl Bench {
    fn new(isa: Isa, n_threads: usize) -> Bench {
        let mut random = SplitMix64::new(1);
        let mut noise = HostBuf::zeroed(MEMORY_BYTES);
        for word in noise.as_chunks_mut::<8>().0 {
            *word = random.next_u64().to_le_bytes();
        }
        // Quantised matrices reach the largest numbers, and few of theirs are subnormal.
        let mut e4m3 = HostBuf::zeroed(MEMORY_BYTES);
        for (code, byte) in e4m3.iter_mut().zip(&*noise) {
            let magnitude = (byte & 0x3f | 0x40).min(0x7e);
            *code = byte & 0x80 | magnitude;
        }
        let mut mxfp4 = HostBuf::zeroed(MEMORY_BYTES / 4);
        mxfp4.copy_from_slice(&noise[..MEMORY_BYTES / 4]);
        mxfp4.iter_mut().step_by(BlockType::MXFP4.block_bytes()).for_each(|byte| *byte = 120);
        let mut params = HostBuf::zeroed(MEMORY_BYTES / 4);
        params.as_chunks_mut::<2>().0.fill([0x24, 0x3c]);
        Bench {
            isa,
            one: Pool::new(1),
            all: Pool::new(n_threads),
            noise,
            e4m3,
            mxfp4,
            params,
            n_limbs: 2,
        }
    }

    /// A matrix of about `n_bytes`, a multiple of 16 rows.
    fn matrix(&self, format: MatrixFormat, cols: usize, n_bytes: usize) -> MatrixView<'_> {
        let rows = (n_bytes / format.matrix_bytes(1, cols)).next_multiple_of(16);
        self.matrix_of(format, rows, cols)
    }

    fn matrix_of(&self, format: MatrixFormat, rows: usize, cols: usize) -> MatrixView<'_> {
        let n_params = format.scale_bytes(rows, cols);
        let weight = match format {
            MatrixFormat::Dense(_) | MatrixFormat::Transposed(_) => &self.params,
            MatrixFormat::Blocks(_) => &self.e4m3,
            MatrixFormat::Ggml(BlockType::MXFP4) => &self.mxfp4,
            _ => &self.noise,
        };
        MatrixView {
            rows,
            cols,
            format,
            weight: &weight[..rows * format.row_bytes(cols)],
            scales: &self.params[..n_params],
            biases: &self.params[self.params.len() - format.bias_bytes(rows, cols)..],
        }
    }

    fn memory(&self) {
        println!("\nfrom memory, 2048 columns: read loop, kernel, share");
        println!("             1 thread              all threads");
        for (name, format) in formats() {
            // A dense matrix of 2-byte parameters is read from a smaller buffer.
            let matrix = self.matrix(format, 2048, MEMORY_BYTES * 2 / 5 / 2);
            let mut input = Input::new(self, 1, &matrix);
            let (mut read, mut kernel) = ([Best::new(); 2], [Best::new(); 2]);
            for _ in 0..ROUNDS {
                for (i, pool) in [&self.one, &self.all].into_iter().enumerate() {
                    let bytes = &self.noise[..n_bytes(&matrix)];
                    read[i].time(|| read_loop(pool, bytes));
                    kernel[i].time(|| input.multiply(pool, self.isa, matrix));
                }
            }
            print!("{name:>8}");
            for (read, kernel) in read.iter().zip(&kernel) {
                let (read, kernel) = (read.rate(n_bytes(&matrix)), kernel.rate(n_bytes(&matrix)));
                print!("  {read:6.1} {kernel:6.1} {:4.0} %", 100.0 * kernel / read);
            }
            println!();
        }
    }

    fn cache(&self) {
        println!("\nfrom the second cache, 1 thread, 2048 columns");
        for (name, format) in formats() {
            let matrix = self.matrix(format, 2048, CACHE_BYTES);
            println!("{name:>8}  {:6.1}", self.rate(&self.one, matrix, 1, 200));
        }
    }

    fn columns(&self) {
        println!("\n4 bits by columns: memory 1 and all threads, second cache 1 thread");
        for cols in [256, 512, 768, 1408, 2048, 4096, 7168, 10240, 16384, 18432] {
            let large = self.matrix(four_bits(), cols, MEMORY_BYTES / 5);
            let small = self.matrix(four_bits(), cols, CACHE_BYTES);
            let one = self.rate(&self.one, large, 1, 1);
            let all = self.rate(&self.all, large, 1, 1);
            println!("{cols:>8}  {one:6.1} {all:6.1} {:6.1}", self.rate(&self.one, small, 1, 200));
        }
    }

    fn many_rows(&self) {
        println!(
            "\nseveral rows of activations, 2048 columns from memory, GOP/s with 1 and all threads"
        );
        for (name, format) in formats() {
            let matrix = self.matrix(format, 2048, 8 << 20);
            print!("{name:>8}");
            for n in [1, 2, 3, 4, 5, 6, 8, 16, 64] {
                let ops = (2 * matrix.rows * matrix.cols * n) as f64;
                let gop = |pool| ops * self.rate(pool, matrix, n, 1) / n_bytes(&matrix) as f64;
                print!("  {n}: {:.0} {:.0}", gop(&self.one), gop(&self.all));
            }
            println!();
        }
    }

    fn small(&self) {
        println!("\none small matrix, 4 bits, microseconds with 1 and all threads");
        for (rows, cols) in [(64, 256), (256, 256), (1024, 256), (512, 2048), (2048, 512)] {
            let matrix = self.matrix_of(four_bits(), rows, cols);
            let us = |pool| n_bytes(&matrix) as f64 / self.rate(pool, matrix, 1, 500) / 1e3;
            println!("{rows:>6}x{cols:<5} {:6.2} {:6.2}", us(&self.one), us(&self.all));
        }
    }

    /// GB/s, the best of several rounds of `n_calls`.
    fn rate(&self, pool: &Pool, matrix: MatrixView<'_>, n: usize, n_calls: usize) -> f64 {
        let mut input = Input::new(self, n, &matrix);
        let mut best = Best::new();
        for _ in 0..ROUNDS {
            best.time(|| (0..n_calls).for_each(|_| input.multiply(pool, self.isa, matrix)));
        }
        best.rate(n_calls * n_bytes(&matrix))
    }

    fn forks(&self) {
        println!("\nforks of 8 tasks, microseconds, median and 99th percentile");
        for work in [0, 20, 50, 200] {
            for gap in [0, 100, 1000] {
                print!("  work {work:>3} gap {gap:>4}:");
                for pool in [&self.one, &self.all] {
                    let (median, high) = fork_time(pool, work, gap);
                    print!("  {} thread {median:6.1} {high:6.1}", pool.n_threads());
                }
                println!();
            }
        }
    }
}

fn formats() -> Vec<(String, MatrixFormat)> {
    let affine = Affine::BITS.map(|bits| {
        let format = Affine::new(bits, GROUP, Float::BF16);
        (format!("{bits} bits"), MatrixFormat::Affine(format))
    });
    let mut all = Vec::from(affine);
    let published = [
        ("INT4", Affine::symmetric(4, 32, Float::BF16)),
        ("AWQ", Affine::new(4, 128, Float::F32)),
        ("GPTQ", Affine::symmetric(4, 128, Float::F32)),
    ];
    all.extend(published.map(|(name, format)| (name.into(), MatrixFormat::Affine(format))));
    all.push(("BF16".into(), MatrixFormat::Dense(Float::BF16)));
    for (name, micro) in MicroScaled::MODES {
        all.push((name.into(), MatrixFormat::Micro(micro)));
    }
    let blocks = ScaledBlocks::new(128, 128, Float::F32);
    all.push(("FP8 blocks".into(), MatrixFormat::Blocks(blocks)));
    all.extend(
        BlockType::all()
            .map(|block_type| (block_type.name().to_owned(), MatrixFormat::Ggml(block_type))),
    );
    if let Some(wanted) = std::env::args().nth(5) {
        all.retain(|(name, _)| *name == wanted);
        assert!(!all.is_empty(), "there is no format {wanted}");
    }
    all
}

fn four_bits() -> MatrixFormat {
    MatrixFormat::Affine(Affine::new(4, GROUP, Float::BF16))
}

fn n_bytes(matrix: &MatrixView<'_>) -> usize {
    matrix.format.matrix_bytes(matrix.rows, matrix.cols)
}

/// Rows of activations in both forms, and room for outputs.
struct Input {
    n: usize,
    cols: usize,
    x: Vec<f32>,
    quantised: Quantised,
    out: Vec<f32>,
}

impl Input {
    fn new(bench: &Bench, n: usize, matrix: &MatrixView<'_>) -> Input {
        let cols = matrix.cols;
        let x: Vec<f32> = (0..n * cols).map(|i| (i * 7919 % 1000) as f32 / 500.0 - 1.0).collect();
        let mut quantised = Quantised::default();
        let n_limbs = bench.n_limbs;
        if let Some(group_size) = integer_group_size(matrix.format) {
            let rounding = Rounding { x: &x, stride: cols, n_rows: n, cols, group_size, n_limbs };
            quantised.quantise(&bench.one, bench.isa, rounding);
        }
        Input { n, cols, x, quantised, out: Vec::new() }
    }

    fn multiply(&mut self, pool: &Pool, isa: Isa, weight: MatrixView<'_>) {
        self.out.resize(self.n * weight.rows, 0.0);
        let x = match integer_group_size(weight.format) {
            Some(_) => Activations::Quantised(&self.quantised),
            None => {
                let (data, cols) = (&self.x, self.cols);
                Activations::Full(FloatRows { data, stride: cols, cols })
            }
        };
        let all = RowMap::Range { first: 0, n: self.n };
        let data = SharedMut::new(&mut self.out);
        let out = OutRows { data, stride: weight.rows, first_col: 0, rows: all };
        run_jobs(pool, isa, &[MatmulJob { weight, x, x_rows: all, out }]);
    }
}

/// Reads every byte, in pieces, and does nothing else.
fn read_loop(pool: &Pool, bytes: &[u8]) {
    const PIECE: usize = 1 << 20;
    pool.run(bytes.len().div_ceil(PIECE), &|i| {
        let piece = &bytes[i * PIECE..bytes.len().min((i + 1) * PIECE)];
        let mut sums = [0u64; 8];
        for line in piece.as_chunks::<64>().0 {
            for (sum, word) in sums.iter_mut().zip(line.as_chunks::<8>().0) {
                *sum = sum.wrapping_add(u64::from_le_bytes(*word));
            }
        }
        black_box(sums);
    });
}

/// The least time of several.
#[derive(Clone, Copy)]
struct Best(Duration);

impl Best {
    fn new() -> Best {
        Best(Duration::MAX)
    }

    fn time(&mut self, work: impl FnOnce()) {
        let start = Instant::now();
        work();
        self.0 = self.0.min(start.elapsed());
    }

    /// GB/s.
    fn rate(&self, n_bytes: usize) -> f64 {
        n_bytes as f64 / self.0.as_nanos() as f64
    }
}

/// Microseconds of work in a fork, and of the pause between forks.
fn fork_time(pool: &Pool, work: u64, gap: u64) -> (f64, f64) {
    const N_TASKS: u64 = 8;
    let spin = |time: Duration| {
        let start = Instant::now();
        while start.elapsed() < time {
            std::hint::spin_loop();
        }
    };
    let mut times: Vec<f64> = (0..1000)
        .map(|_| {
            spin(Duration::from_micros(gap));
            let start = Instant::now();
            pool.run(N_TASKS as usize, &|_| spin(Duration::from_nanos(work * 1000 / N_TASKS)));
            start.elapsed().as_nanos() as f64 / 1e3
        })
        .collect();
    times.sort_unstable_by(f64::total_cmp);
    (times[times.len() / 2], times[times.len() * 99 / 100])
}
