//! The kernel for matrix units: how far inputs are off that it takes as one half each, that sums of
//! two are not, and that tiles of all sizes give the same bits.

use std::sync::Arc;

use moeflux_backend::cpu::matmul::integer_group_size;
use moeflux_backend::{ActivationPrecision, Cols, HostMatrix, Ops, Projection};
use moeflux_core::quant::{
    Affine, AffineBias, BlockType, Float, MatrixFormat, MatrixView, MicroScaled, ScaledBlocks,
    SmallScale, bf16_to_f32,
};
use moeflux_core::{HostBuf, SplitMix64};

use super::{RELATIVE, context, random_word, set_small_scales};
use crate::layouts::format::{BLOCK, Decoder, F16Operand};
use crate::layouts::product::{F16Tiles, ProductSize};
use crate::tests::metal::cases::Capturing;
use crate::{Context, Tiles};

/// Rows of activations and of the matrix, columns, columns of a group.
const ROWS: usize = 140;
const OUTPUTS: usize = 134;
const COLS: usize = 288;
/// Columns of matrices whose blocks have 256.
const WIDE: usize = 512;
const GROUP: usize = 32;

const FORMATS: [MatrixFormat; 19] = [
    affine(4),
    affine(6),
    affine(8),
    MatrixFormat::Micro(MicroScaled::MXFP4),
    MatrixFormat::Micro(MicroScaled::NVFP4),
    MatrixFormat::Dense(Float::BF16),
    MatrixFormat::Dense(Float::F32),
    MatrixFormat::Dense(Float::F16),
    MatrixFormat::Micro(MicroScaled::MXFP8),
    // Rectangles that neither rows nor blocks divide.
    MatrixFormat::Blocks(ScaledBlocks {
        block_rows: 7,
        block_cols: 20,
        scales: Float::BF16,
        phase: 0,
    }),
    MatrixFormat::Ggml(BlockType::Q8_0),
    MatrixFormat::Ggml(BlockType::Q5_1),
    MatrixFormat::Ggml(BlockType::Q4_0),
    MatrixFormat::Ggml(BlockType::Q4_K),
    MatrixFormat::Ggml(BlockType::Q6_K),
    MatrixFormat::Ggml(BlockType::IQ4_XS),
    MatrixFormat::Micro(MicroScaled::NVFP4_GLOBAL),
    MatrixFormat::Affine(Affine::symmetric(4, GROUP, Float::BF16)),
    MatrixFormat::Affine(Affine::symmetric(8, GROUP, Float::BF16)),
];

const fn affine(bits: u8) -> MatrixFormat {
    MatrixFormat::Affine(Affine::new(bits, GROUP, Float::BF16))
}

/// Share of an activation that a half rounds off at most: it keeps 11 bits.
const HALF: f64 = 1.0 / 4096.0;

struct Case {
    format: MatrixFormat,
    cols: usize,
    weight: Vec<u8>,
    scales: Vec<u8>,
    biases: Vec<u8>,
    x: Vec<f32>,
}

impl Case {
    fn new(format: MatrixFormat) -> Case {
        let cols = match format {
            MatrixFormat::Ggml(it) if it.block_cols() > BLOCK => WIDE,
            _ => COLS,
        };
        Case::of_cols(format, cols)
    }

    fn of_cols(format: MatrixFormat, cols: usize) -> Case {
        let mut random = SplitMix64::new(7);
        let mut drawn = || u32::from(random_word(&mut random));
        let (mut weight, mut scales, mut biases) = (Vec::new(), Vec::new(), Vec::new());
        while weight.len() < OUTPUTS * format.row_bytes(cols) {
            match format {
                // Numbers near 0.01.
                MatrixFormat::Dense(float) => {
                    let bits = 0x3c00_0000 | drawn() << 9 & 0xff_ffff | drawn() << 31;
                    float.append(f32::from_bits(bits), &mut weight);
                }
                // No NaN in E4M3.
                MatrixFormat::Blocks(_) | MatrixFormat::Micro(MicroScaled::MXFP8) => {
                    weight.push(drawn() as u8 & 0xfe);
                }
                _ => weight.push(drawn() as u8),
            }
        }
        while scales.len() < format.scale_bytes(OUTPUTS, cols) {
            match format {
                // Numbers near 0.01, and near -0.07, in BF16.
                MatrixFormat::Blocks(_) => {
                    scales.extend((0x3c00 | drawn() as u16 & 0xff).to_le_bytes());
                }
                MatrixFormat::Affine(affine) => {
                    scales.extend((0x3c00 | drawn() as u16 & 0xff).to_le_bytes());
                    if affine.bias == AffineBias::Stored {
                        biases.extend((0xbd80 | drawn() as u16 & 0x7f).to_le_bytes());
                    }
                }
                // In E8M0 2^-9 to 2^-2.
                MatrixFormat::Micro(micro) if micro.scale == SmallScale::E8M0 => {
                    scales.push(118 + (drawn() & 7) as u8);
                }
                // In E4M3 up to 0.12.
                _ => scales.push((drawn() & 0x1f) as u8),
            }
        }
        if let MatrixFormat::Ggml(it) = format {
            set_small_scales(it, &mut weight);
        }
        if let MatrixFormat::Micro(MicroScaled { has_global_scale: true, .. }) = format {
            biases.extend(0.37f32.to_le_bytes());
        }
        // Numbers of 16 bits: neither one digit nor one half holds them, nor two digits
        // where a group's largest is small.
        let x = (0..ROWS * cols).map(|_| 0.013_7 * (drawn() as f32 - 32_768.0) / 257.0).collect();
        Case { format, cols, weight, scales, biases, x }
    }

    fn product(
        &self,
        context: &Arc<Context>,
        tiles: Tiles,
        f16_tiles: Option<F16Tiles>,
        inputs: ActivationPrecision,
    ) -> Vec<f32> {
        let host = |bytes: &[u8]| {
            let mut buf = HostBuf::zeroed(bytes.len());
            buf[..bytes.len()].copy_from_slice(bytes);
            buf
        };
        let params = |bytes: &[u8]| (!bytes.is_empty()).then(|| host(bytes));
        let capturing = Capturing::new(context);
        let mut b = capturing.open();
        b.fix_tiles(tiles);
        b.f16_tiles = f16_tiles;
        let weight = b.load_matrix(HostMatrix {
            rows: OUTPUTS,
            cols: self.cols,
            format: self.format,
            inputs,
            weight: host(&self.weight),
            scales: params(&self.scales),
            biases: params(&self.biases),
        });
        let (x, y) = (b.alloc(ROWS, self.cols), b.alloc(ROWS, OUTPUTS));
        b.write(x, &self.x);
        let all = |buf, len| Cols { buf, start: 0, len };
        b.project(ROWS, all(x, self.cols), &[Projection { weight, out: all(y, OUTPUTS) }]);
        b.read(y, ROWS).expect("the device works")
    }

    /// Sum of what rounding may take from an output: of each activation times
    /// its weight; of integers of four bits, times these less eight, and of each group's sum
    /// times what its bias then lacks.
    fn bound(&self, row: usize, output: usize) -> f64 {
        let Case { format, cols, weight, scales, biases, .. } = self;
        if *format != affine(4) {
            let (rows, cols, format) = (OUTPUTS, *cols, *format);
            let mut weights = vec![0.0; cols];
            MatrixView { rows, cols, format, weight, scales, biases }
                .decode_row(output, &mut weights);
            let products = weights.iter().zip(&self.x[row * cols..]);
            // Weights of blocks are rounded to halves, too.
            let n_rounded = if matches!(format, MatrixFormat::Ggml(_)) { 2.0 } else { 1.0 };
            return n_rounded * HALF * products.map(|(w, x)| f64::from(w * x).abs()).sum::<f64>();
        }
        let bf16 = |all: &[u8], i: usize| {
            f64::from(bf16_to_f32(u16::from_le_bytes([all[2 * i], all[2 * i + 1]])))
        };
        let mut sum = 0.0;
        for group in 0..COLS / GROUP {
            let param = output * COLS / GROUP + group;
            let (scale, bias) = (bf16(scales, param), bf16(biases, param));
            let mut of_group = 0.0;
            for col in group * GROUP..(group + 1) * GROUP {
                let byte = self.weight[(output * COLS + col) / 2];
                let integer = f64::from(byte >> (4 * (col % 2)) & 15) - 8.0;
                let x = f64::from(self.x[row * COLS + col]);
                of_group += x;
                sum += (x * scale * integer).abs();
            }
            sum += ((bias + 8.0 * scale) * of_group).abs();
        }
        HALF * sum
    }
}

/// Matrix units or what stands for them.
pub(super) fn tiles(context: &Context) -> Option<Tiles> {
    match (context.has_coop_matrix, context.has_f16) {
        (true, _) => Some(Tiles::CoopMatrix),
        (_, true) => Some(Tiles::Emulated),
        _ => None,
    }
}

/// Compares products of many rows by this kernel with products in F32 of the inputs as
/// they are. Returns the worst difference, and the part of what is allowed that rounding in
/// F32 takes. An output may differ by its bound times `share` in addition to that part.
fn worst(
    context: &Arc<Context>,
    tiles: Tiles,
    case: &Case,
    inputs: ActivationPrecision,
    share: f64,
) -> (f64, f64) {
    let got = case.product(context, tiles, None, inputs);
    let want = case.product(context, Tiles::F32, None, ActivationPrecision::F32);
    let largest = want.iter().fold(0.0f32, |max, value| max.max(value.abs()));
    let in_singles = f64::from(RELATIVE * largest);
    let mut worst = 0.0f64;
    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
        let off = f64::from((got - want).abs());
        let allowed = share * case.bound(i / OUTPUTS, i % OUTPUTS) + in_singles;
        assert!(
            off <= allowed,
            "output {i} is {got:e}, in singles {want:e}: {allowed:e} is allowed"
        );
        worst = worst.max(off);
    }
    (worst, in_singles)
}

#[test]
fn one_half_is_off_by_what_it_rounds_off() {
    let Some(context) = context() else { return };
    let Some(tiles) = tiles(&context) else { return };
    let both = [ActivationPrecision::Int8, ActivationPrecision::Int16];
    for (case, inputs) in
        FORMATS.iter().flat_map(|format| both.map(|inputs| (Case::new(*format), inputs)))
    {
        // Inputs of weights that are no integers are two halves all the same.
        let is_one = integer_group_size(case.format).is_some();
        let share = if is_one { 1.0 } else { 0.0 };
        let (worst, in_singles) = worst(&context, tiles, &case, inputs, share);
        // Else they were not taken as halves at all, and nothing was tested.
        assert!(!is_one || worst > in_singles, "{worst:e}: singles differ by {in_singles:e}");
    }
}

#[test]
fn rows_may_end_within_a_block() {
    let Some(context) = context() else { return };
    let Some(tiles) = tiles(&context) else { return };
    for (float, cols) in
        [(Float::BF16, COLS + 8), (Float::BF16, COLS - 16), (Float::F32, 2 * BLOCK + 24)]
    {
        let case = Case::of_cols(MatrixFormat::Dense(float), cols);
        let inputs = ActivationPrecision::Int16;
        worst(&context, tiles, &case, inputs, 0.0);
        let halves = case.product(&context, tiles, None, inputs);
        let singles = case.product(&context, Tiles::F32, None, inputs);
        assert!(halves != singles, "{cols} columns: these were multiplied as singles");
    }
}

#[test]
fn one_half_is_closer_than_one_digit() {
    let Some(context) = context() else { return };
    let Some(tiles) = tiles(&context) else { return };
    for case in FORMATS.map(Case::new) {
        if let MatrixFormat::Affine(_) | MatrixFormat::Ggml(_) = case.format {
            let (half, _) = worst(&context, tiles, &case, ActivationPrecision::Int8, 1.0);
            let (digit, _) = worst(&context, Tiles::F32, &case, ActivationPrecision::Int8, 1e3);
            assert!(5.0 * half < digit, "{:?}: {half:e} and {digit:e}", case.format);
        }
    }
}

#[test]
fn tiles_of_all_sizes_give_the_same_bits() {
    let Some(context) = context() else { return };
    let Some(tiles) = tiles(&context) else { return };
    // One of each kernel.
    let formats = [affine(4), affine(8), FORMATS[3], FORMATS[5], FORMATS[10], FORMATS[13]];
    let inputs = ActivationPrecision::Int16;
    for case in formats.map(Case::new) {
        let bits = |shape: &F16Tiles| {
            let all = case.product(&context, tiles, Some(*shape), inputs);
            all.into_iter().map(f32::to_bits).collect::<Vec<u32>>()
        };
        let all = F16Tiles::all(Decoder::new(case.format).f16_operand());
        let (first, rest) = all.split_first().expect("there are some");
        let wanted = bits(first);
        for shape in rest {
            assert!(bits(shape) == wanted, "{:?}: {shape:?}, {first:?}", case.format);
        }
    }
}

#[test]
fn tiles_are_as_large_as_fills_a_device() {
    let tiles = |n_matrices, x_rows, w_rows| {
        let all = F16Tiles::all(F16Operand::Integers { have_biases: true });
        let tiles = F16Tiles::of(all, ProductSize { n_matrices, x_rows, w_rows });
        (tiles.x_tile, tiles.w_tile)
    };
    assert_eq!(tiles(1, 4096, 8192), (128, 256));
    assert_eq!(tiles(1, 1024, 2048), (128, 128));
    // Too few of them; too few rows in each.
    assert_eq!(tiles(1, 256, 4096), (64, 128));
    assert_eq!(tiles(1, 256, 2048), (64, 64));
    assert_eq!(tiles(512, 64, 2048), (64, 128));
    assert_eq!(tiles(512, 96, 2048), (64, 128));
    assert_eq!(tiles(512, 97, 2048), (128, 256));
    assert_eq!(tiles(512, 20, 512), (32, 64));
    assert_eq!(tiles(512, 6, 512), (16, 64));
    // Never tiles of fewer rows than there are, but 64.
    assert_eq!(tiles(1, 128, 512), (64, 64));
    assert_eq!(tiles(1, 20, 512), (32, 64));
}
