//! Every instruction set against the specification, bit by bit.

use moeflux_core::quant::{
    Affine, AffineBias, Float, MatrixFormat, MatrixView, MicroScaled, ScaledBlocks, SmallScale,
};

use super::*;
use crate::conformance::set_scales;
use crate::cpu::Isa;
use crate::cpu::pool::{Pool, SharedMut};

mod blocks;
mod unstored;

/// Numbers that look random and are the same everywhere.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| (self.next() >> 32) as u8).collect()
    }

    /// In -1 .. 1.
    fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// A matrix whose parts begin at odd addresses and end where memory ends.
struct TestMatrix {
    rows: usize,
    cols: usize,
    format: MatrixFormat,
    weight: Vec<u8>,
    scales: Vec<u8>,
    biases: Vec<u8>,
}

impl TestMatrix {
    fn new(noise: &mut Noise, rows: usize, cols: usize, format: MatrixFormat) -> TestMatrix {
        let weight = match format {
            MatrixFormat::Ggml(block_type) => {
                let mut weight = noise.bytes(1 + rows * format.row_bytes(cols));
                let values: Vec<f32> = (0..weight.len() / block_type.block_bytes() * 2)
                    .map(|_| noise.float())
                    .collect();
                set_scales(block_type, &mut weight[1..], &values);
                weight
            }
            MatrixFormat::Dense(float) | MatrixFormat::Transposed(float) => {
                params(noise, rows * cols, float, 1.0)
            }
            MatrixFormat::Affine(_) => noise.bytes(1 + rows * format.row_bytes(cols)),
            // No byte of them is a NaN.
            _ => noise
                .bytes(1 + rows * format.row_bytes(cols))
                .iter()
                .map(|byte| byte & 0xfe)
                .collect(),
        };
        let n_bytes = format.scale_bytes(rows, cols);
        let (scales, biases) = match format {
            MatrixFormat::Affine(it) => {
                let n = n_bytes / it.params.bytes();
                let n_biases = if it.bias == AffineBias::Stored { n } else { 0 };
                (params(noise, n, it.params, 0.01), params(noise, n_biases, it.params, 0.1))
            }
            MatrixFormat::Micro(it) => {
                let scale = |byte: &u8| match it.scale {
                    SmallScale::E8M0 => 90 + byte % 30,
                    SmallScale::E4M3 => 1 + byte % 40,
                };
                let n_global = usize::from(it.has_global_scale);
                let scales = noise.bytes(1 + n_bytes).iter().map(scale).collect();
                (scales, params(noise, n_global, Float::F32, 0.5))
            }
            MatrixFormat::Blocks(it) => {
                (params(noise, n_bytes / it.scales.bytes(), it.scales, 0.01), vec![0])
            }
            MatrixFormat::Nf4 => (params(noise, n_bytes / 4, Float::F32, 0.5), vec![0]),
            MatrixFormat::Dense(_) | MatrixFormat::Transposed(_) | MatrixFormat::Ggml(_) => {
                (vec![0], vec![0])
            }
        };
        TestMatrix { rows, cols, format, weight, scales, biases }
    }

    /// The largest integer everywhere.
    fn fill_with_largest(&mut self) {
        if let MatrixFormat::Ggml(block_type) = self.format {
            self.weight.fill(0xff);
            let values = vec![1.0; self.weight.len() / block_type.block_bytes() * 2];
            set_scales(block_type, &mut self.weight[1..], &values);
            return;
        }
        let is_e2m1 = matches!(self.format, MatrixFormat::Micro(_));
        self.weight.fill(if is_e2m1 { 0x77 } else { 0xff });
    }

    fn view(&self) -> MatrixView<'_> {
        MatrixView {
            rows: self.rows,
            cols: self.cols,
            format: self.format,
            weight: &self.weight[1..],
            scales: &self.scales[1..],
            biases: &self.biases[1..],
        }
    }
}

/// One byte, then `n` floats.
fn params(noise: &mut Noise, n: usize, float: Float, size: f32) -> Vec<u8> {
    let mut out = vec![0];
    for _ in 0..n {
        let value = noise.float() * size;
        match float {
            Float::F32 => out.extend(value.to_le_bytes()),
            Float::F16 => out.extend(half::f16::from_f32(value).to_le_bytes()),
            Float::BF16 => out.extend(half::bf16::from_f32(value).to_le_bytes()),
        }
    }
    out
}

thread_local! {
    /// One for all products of a test: threads are dear in emulators.
    static POOL: Pool = Pool::new(2);
}

/// All outputs of one product, (x_rows, rows).
fn product(isa: Isa, weight: MatrixView<'_>, x: Activations<'_>, x_rows: RowMap<'_>) -> Vec<f32> {
    let n = x_rows.len();
    let mut out = vec![f32::NAN; n * weight.rows];
    let rows = RowMap::Range { first: 0, n };
    let out_rows =
        OutRows { data: SharedMut::new(&mut out), stride: weight.rows, first_col: 0, rows };
    let job = MatmulJob { weight, x, x_rows, out: out_rows };
    POOL.with(|pool| run_jobs(pool, isa, &[job]));
    out
}

#[track_caller]
fn assert_same_bits(got: &[f32], want: &[f32], what: &dyn Fn() -> String) {
    assert_eq!(got.len(), want.len());
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert_eq!(got.to_bits(), want.to_bits(), "{}: output {i}: {got} {want}", what());
    }
}

fn quantised(isa: Isa, x: &[f32], cols: usize, group_size: usize, n_limbs: usize) -> Quantised {
    let mut out = Quantised::default();
    let n_rows = x.len() / cols;
    let rounding = Rounding { x, stride: cols, n_rows, cols, group_size, n_limbs };
    out.quantise(&Pool::new(1), isa, rounding);
    out
}

/// The integer product of every instruction set against scalar.
#[track_caller]
fn check_integer(matrix: &TestMatrix, x: &[f32]) {
    for n_limbs in [1, 2] {
        check_limbs(matrix, x, n_limbs);
    }
}

#[track_caller]
fn check_limbs(matrix: &TestMatrix, x: &[f32], n_limbs: usize) {
    let (weight, format) = (matrix.view(), matrix.format);
    let on = |isa| quantised(isa, x, matrix.cols, group_size(format), n_limbs);
    let x = on(Isa::SCALAR);
    let list: Vec<u32> = (0..x.n_rows() as u32).rev().collect();
    let x_rows = RowMap::List(&list);
    let want = product(Isa::SCALAR, weight, Activations::Quantised(&x), x_rows);
    for isa in Isa::available() {
        let x = on(isa);
        let got = product(isa, weight, Activations::Quantised(&x), x_rows);
        assert_same_bits(&got, &want, &|| {
            format!("{isa:?} {format:?} {}x{} n {}", matrix.rows, matrix.cols, x.n_rows())
        });
        for (i, row) in list.iter().enumerate() {
            let one = RowMap::Range { first: *row as usize, n: 1 };
            let got = product(isa, weight, Activations::Quantised(&x), one);
            let want = &want[i * matrix.rows..][..matrix.rows];
            assert_same_bits(&got, want, &|| {
                format!("{isa:?} {format:?} {}x{} alone", matrix.rows, matrix.cols)
            });
        }
    }
}

/// Columns that share a scale.
fn group_size(format: MatrixFormat) -> usize {
    integer_group_size(format).expect("a format of integers")
}

/// Formats of integers; those with one type of parameters only, or with each.
fn every_integer(floats: &[Float]) -> impl Iterator<Item = MatrixFormat> {
    let affine =
        every_affine().filter(|affine| floats.contains(&affine.params)).map(MatrixFormat::Affine);
    let micro = [MicroScaled::MXFP4, MicroScaled::NVFP4, MicroScaled::NVFP4_GLOBAL];
    affine.chain(micro.map(MatrixFormat::Micro))
}

/// Columns of which integer kernels take any multiple.
fn step_cols(format: MatrixFormat) -> usize {
    group_size(format).max(32)
}

const EVERY_FLOAT: [Float; 3] = [Float::BF16, Float::F16, Float::F32];

fn every_affine() -> impl Iterator<Item = Affine> {
    let all = Affine::BITS.into_iter().flat_map(|bits| {
        Affine::GROUP_SIZES.into_iter().flat_map(move |group_size| {
            EVERY_FLOAT.into_iter().map(move |params| Affine::new(bits, group_size, params))
        })
    });
    let is_published = |affine: &Affine| matches!(affine.bits, 4 | 8);
    let symmetric = all.clone().filter(is_published);
    all.chain(symmetric.map(|affine| Affine { bias: AffineBias::Symmetric, ..affine }))
}

#[test]
fn every_isa_gives_the_bits_of_scalar_on_odd_shapes() {
    let mut noise = Noise(7);
    for format in every_integer(&EVERY_FLOAT) {
        for (rows, n_groups, n) in [
            (1, 1, 1),
            (2, 3, 2),
            (15, 2, 5),
            (17, 5, 3),
            (40, 4, 9),
            (49, 9, 1),
            (32, 12, 1),
            (35, 22, 1),
        ] {
            let cols = n_groups * step_cols(format);
            let matrix = TestMatrix::new(&mut noise, rows, cols, format);
            let x: Vec<f32> = (0..n * cols).map(|_| noise.float()).collect();
            check_integer(&matrix, &x);
        }
    }
}

/// The largest weights with the largest limbs of one sign.
#[test]
fn no_sum_leaves_its_lane() {
    let mut noise = Noise(5);
    for format in every_integer(&[Float::BF16]) {
        let cols = 3 * step_cols(format);
        let mut matrix = TestMatrix::new(&mut noise, 9, cols, format);
        matrix.fill_with_largest();
        for code in [32_512, -32_512, 32_384, -32_385, 127, -128] {
            let mut x = vec![code as f32 / 32_512.0; 5 * cols];
            // What scales the group.
            x.iter_mut().step_by(32).for_each(|value| *value = 1.0);
            check_integer(&matrix, &x);
        }
    }
}

#[test]
fn every_isa_gives_the_bits_of_scalar_for_every_number_of_rows() {
    let mut noise = Noise(9);
    for format in every_integer(&[Float::BF16]).filter(|format| group_size(*format) != 128) {
        for rows in 1..=40 {
            let matrix = TestMatrix::new(&mut noise, rows, 192, format);
            let x: Vec<f32> = (0..2 * 192).map(|_| noise.float()).collect();
            check_integer(&matrix, &x);
        }
    }
}

#[test]
fn every_isa_gives_the_bits_of_scalar_on_long_rows() {
    let mut noise = Noise(8);
    for format in every_integer(&[Float::BF16]) {
        for (rows, cols, n) in [
            (33, 2048, 3),
            (49, 4224, 3),
            (18, 7168, 2),
            (3, 18432, 2),
            (19, 12416, 1),
            (5, 640, 70),
        ] {
            let matrix = TestMatrix::new(&mut noise, rows, cols, format);
            let x: Vec<f32> = (0..n * cols).map(|_| noise.float()).collect();
            check_integer(&matrix, &x);
        }
    }
}

#[test]
fn every_isa_gives_the_bits_of_scalar_for_many_rows_of_activations() {
    let mut noise = Noise(6);
    for format in every_integer(&[Float::BF16]) {
        for (rows, n_groups, n) in [(5, 3, 40), (33, 1, 17), (48, 3, 8)] {
            let cols = n_groups * step_cols(format);
            let matrix = TestMatrix::new(&mut noise, rows, cols, format);
            let x: Vec<f32> = (0..n * cols).map(|_| noise.float()).collect();
            check_integer(&matrix, &x);
        }
    }
    let affine = Affine::new(4, 64, Float::BF16);
    // More than a kernel takes at a time, of activations, of columns and of rows: of 59 rows three
    // are left, of four tiles two, and of seven twice two.
    let large = [(3, 18432, 58), (19, 18432, 59), (64, 1088, 5), (112, 1088, 4), (112, 576, 3)];
    for (rows, cols, n) in large {
        let matrix = TestMatrix::new(&mut noise, rows, cols, MatrixFormat::Affine(affine));
        let x: Vec<f32> = (0..n * cols).map(|_| noise.float()).collect();
        check_integer(&matrix, &x);
    }
}

#[test]
fn extreme_values_neither_saturate_nor_differ() {
    for format in every_integer(&EVERY_FLOAT) {
        let cols = 3 * step_cols(format);
        let mut matrix = TestMatrix::new(&mut Noise(5), 19, cols, format);
        matrix.fill_with_largest();
        for sign in [1.0f32, -1.0] {
            check_integer(&matrix, &vec![sign; 3 * cols]);
        }
        let tiny: Vec<f32> = (0..3 * cols as u32).map(f32::from_bits).collect();
        check_integer(&matrix, &tiny);
        let huge: Vec<f32> = (0..3 * cols).map(|i| f32::MAX / (i % 7 + 1) as f32).collect();
        check_integer(&matrix, &huge.iter().map(|value| value * 1e-3).collect::<Vec<_>>());
    }
}

#[test]
fn powers_of_two_at_both_ends_are_exact_and_what_is_none_is_no_number() {
    let format = MatrixFormat::Micro(MicroScaled::MXFP4);
    let mut noise = Noise(11);
    for (rows, n_groups, n) in [(17, 1, 1), (16, 2, 1), (40, 9, 2), (18, 3, 7), (16, 4, 1)] {
        let cols = n_groups * group_size(format);
        let mut matrix = TestMatrix::new(&mut noise, rows, cols, format);
        let powers = [0, 1, 2, 127, 128, 239, 240];
        for (i, it) in matrix.scales.iter_mut().enumerate() {
            *it = powers[i * 5 % 7];
        }
        let x: Vec<f32> = (0..n * cols).map(|_| noise.float()).collect();
        check_integer(&matrix, &x);
        // Of the first row, past the byte that shifts all.
        matrix.scales[n_groups] = 255;
        for isa in Isa::available() {
            let x = quantised(isa, &x, cols, group_size(format), 2);
            let x_rows = RowMap::Range { first: 0, n };
            let out = product(isa, matrix.view(), Activations::Quantised(&x), x_rows);
            for (i, out) in out.iter().enumerate() {
                assert_eq!(out.is_nan(), i % rows == 0, "{isa:?}: output {i} of {rows} rows");
            }
        }
    }
}

/// The definition of the full product, literally.
fn full_by_definition(weight: MatrixView<'_>, x: &[f32]) -> Vec<f32> {
    if let MatrixFormat::Micro(micro) = weight.format
        && micro.has_global_scale
    {
        let format = MatrixFormat::Micro(MicroScaled { has_global_scale: false, ..micro });
        let mut out = full_by_definition(MatrixView { format, biases: &[], ..weight }, x);
        out.iter_mut().for_each(|out| *out *= weight.global_scale());
        return out;
    }
    let mut decoded = vec![0.0; weight.cols];
    let mut out = Vec::new();
    for x in x.chunks_exact(weight.cols) {
        for row in 0..weight.rows {
            weight.decode_row(row, &mut decoded);
            if let MatrixFormat::Transposed(_) = weight.format {
                let pairs = decoded.iter().zip(x);
                out.push(pairs.fold(0.0, |sum: f32, (w, x)| w.mul_add(*x, sum)));
                continue;
            }
            let mut lanes = [0f32; 16];
            for (i, (w, x)) in decoded.iter().zip(x).enumerate() {
                lanes[i % 16] = w.mul_add(*x, lanes[i % 16]);
            }
            for half in [8, 4, 2, 1] {
                (0..half).for_each(|i| lanes[i] += lanes[i + half]);
            }
            out.push(lanes[0]);
        }
    }
    out
}

#[track_caller]
fn check_full(matrix: &TestMatrix, x: &[f32]) {
    let want = full_by_definition(matrix.view(), x);
    let rows = FloatRows { data: x, stride: matrix.cols, cols: matrix.cols };
    let x_rows = RowMap::Range { first: 0, n: x.len() / matrix.cols };
    for isa in Isa::available() {
        let got = product(isa, matrix.view(), Activations::Full(rows), x_rows);
        assert_same_bits(&got, &want, &|| {
            format!("{isa:?} {:?} {}x{} {x_rows:?}", matrix.format, matrix.rows, matrix.cols)
        });
    }
}

#[test]
fn the_full_product_follows_its_definition_on_every_isa() {
    let mut noise = Noise(4);
    for float in [Float::BF16, Float::F16, Float::F32] {
        for (rows, cols, n) in [
            (1, 1, 1),
            (18, 1029, 1),
            (3, 15, 2),
            (4, 16, 4),
            (7, 33, 5),
            (18, 1029, 21),
            (50, 531, 71),
        ] {
            let matrix = TestMatrix::new(&mut noise, rows, cols, MatrixFormat::Dense(float));
            let x: Vec<f32> = (0..n * cols).map(|_| noise.float()).collect();
            check_full(&matrix, &x);
            let format = MatrixFormat::Transposed(float);
            check_full(&TestMatrix::new(&mut noise, rows, cols, format), &x);
            let matrix = TestMatrix::new(&mut noise, 1030, rows, format);
            check_full(&matrix, &x[..rows * n.min(cols)]);
        }
    }
    for (_, micro) in MicroScaled::MODES {
        for (rows, n_groups, n) in [(1, 1, 1), (7, 3, 1), (18, 37, 1), (7, 3, 5), (18, 37, 21)] {
            let cols = n_groups * micro.group_size;
            let matrix = TestMatrix::new(&mut noise, rows, cols, MatrixFormat::Micro(micro));
            let x: Vec<f32> = (0..n * cols).map(|_| noise.float()).collect();
            check_full(&matrix, &x);
        }
    }
    for (rows, n_groups, n) in [(1, 1, 1), (7, 3, 1), (18, 19, 1), (7, 3, 5), (18, 19, 21)] {
        let cols = n_groups * 64;
        let matrix = TestMatrix::new(&mut noise, rows, cols, MatrixFormat::Nf4);
        let x: Vec<f32> = (0..n * cols).map(|_| noise.float()).collect();
        check_full(&matrix, &x);
    }
    for (block_rows, block_cols, scales) in [(128, 128, Float::F32), (3, 5, Float::BF16)] {
        let blocks = ScaledBlocks::new(block_rows, block_cols, scales);
        for (rows, cols, n) in [(1, 1, 1), (7, 33, 5), (130, 1029, 1), (18, 1029, 21)] {
            let matrix = TestMatrix::new(&mut noise, rows, cols, MatrixFormat::Blocks(blocks));
            let x: Vec<f32> = (0..n * cols).map(|_| noise.float()).collect();
            check_full(&matrix, &x);
        }
    }
    for affine in every_affine() {
        let cols = 5 * affine.group_size;
        let matrix = TestMatrix::new(&mut noise, 5, cols, MatrixFormat::Affine(affine));
        let x: Vec<f32> = (0..6 * cols).map(|_| noise.float()).collect();
        check_full(&matrix, &x);
    }
}

#[test]
fn a_missing_column_adds_nothing_not_even_a_zero() {
    let tiny = f32::from_bits(1);
    let weight: Vec<u8> = (0..17).flat_map(|_| (-tiny).to_le_bytes()).collect();
    let matrix = TestMatrix {
        rows: 1,
        cols: 17,
        format: MatrixFormat::Dense(Float::F32),
        weight: [vec![0], weight].concat(),
        scales: vec![0],
        biases: vec![0],
    };
    check_full(&matrix, &[tiny; 17]);
}

#[test]
fn jobs_of_one_call_share_a_buffer() {
    let mut noise = Noise(3);
    let affine = Affine::new(4, 64, Float::BF16);
    let shapes = [(48, 256), (16, 256), (2048, 256), (600, 256)];
    let matrices =
        shapes.map(|(r, c)| TestMatrix::new(&mut noise, r, c, MatrixFormat::Affine(affine)));
    let x: Vec<f32> = (0..4 * 256).map(|_| noise.float()).collect();
    let x = quantised(Isa::detect(), &x, 256, 64, 1);
    let (x_rows, out_rows) = ([3, 0, 2], [5, 1, 0]);
    let stride = shapes.iter().map(|shape| shape.0).sum::<usize>() + 3;
    let mut out = vec![f32::NAN; 6 * stride];
    let data = SharedMut::new(&mut out);
    let mut first_col = 1;
    let jobs = matrices.each_ref().map(|matrix| {
        let rows = RowMap::List(&out_rows);
        let out = OutRows { data, stride, first_col, rows };
        first_col += matrix.rows;
        let (x, x_rows) = (Activations::Quantised(&x), RowMap::List(&x_rows));
        MatmulJob { weight: matrix.view(), x, x_rows, out }
    });
    run_jobs(&Pool::new(3), Isa::detect(), &jobs);
    let mut first_col = 1;
    for it in &matrices {
        let want =
            product(Isa::SCALAR, it.view(), Activations::Quantised(&x), RowMap::List(&x_rows));
        for (i, row) in out_rows.iter().enumerate() {
            let got = &out[*row as usize * stride + first_col..][..it.rows];
            assert_same_bits(got, &want[i * it.rows..][..it.rows], &|| format!("row {row}"));
        }
        first_col += it.rows;
    }
    assert!(out[0].is_nan() && out[2 * stride].is_nan(), "nothing else is written");
}

#[test]
#[should_panic(expected = "outputs of one call overlap")]
fn refuses_outputs_that_overlap() {
    let matrix = TestMatrix::new(&mut Noise(2), 8, 16, MatrixFormat::Dense(Float::F32));
    let x = [0.0; 16];
    let mut out = [0.0; 12];
    let data = SharedMut::new(&mut out);
    let jobs = [0, 4].map(|first_col| MatmulJob {
        weight: matrix.view(),
        x: Activations::Full(FloatRows { data: &x, stride: 16, cols: 16 }),
        x_rows: RowMap::Range { first: 0, n: 1 },
        out: OutRows { data, stride: 12, first_col, rows: RowMap::Range { first: 0, n: 1 } },
    });
    run_jobs(&Pool::new(1), Isa::SCALAR, &jobs);
}
