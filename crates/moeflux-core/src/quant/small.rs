//! Floats of 4 and 8 bits, and the scales that groups of them share.
//!
//! E2M1, E4M3 and E8M0 are those of OCP's "Microscaling Formats (MX) Specification" 1.0. E4M3 has
//! no infinities; its largest exponent and mantissa are NaN.

use super::Float;

/// A float of four or eight bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SmallFloat {
    /// Four bits, two to a byte, the lower column in the lower half.
    E2M1,
    /// Eight bits.
    E4M3,
}

/// A scale of eight bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SmallScale {
    /// A power of two; 255 is NaN.
    E8M0,
    /// The format of [`SmallFloat::E4M3`].
    E4M3,
}

/// Small floats in groups of columns that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MicroScaled {
    /// The format of an element.
    pub element: SmallFloat,
    /// Columns that share a scale: 16 or 32.
    pub group_size: usize,
    /// The format of a scale.
    pub scale: SmallScale,
    /// Whether all of a matrix shares a scale as well, an `f32` in place of biases: elements are
    /// `element * scale * global scale`, and products are multiplied by it once.
    pub has_global_scale: bool,
}

/// E4M3 elements in blocks that share a scale, as in DeepSeek-V3. The blocks at the right and lower
/// edges may be smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScaledBlocks {
    /// Rows of a block.
    pub block_rows: usize,
    /// Columns of a block.
    pub block_cols: usize,
    /// How scales are stored; they are in row-major order of the blocks.
    pub scales: Float,
    /// Rows of the first block that precede the first row: 0 except for slices.
    pub phase: usize,
}

impl SmallFloat {
    /// Bits of an element.
    pub fn bits(self) -> usize {
        match self {
            SmallFloat::E2M1 => 4,
            SmallFloat::E4M3 => 8,
        }
    }

    /// The value of element `idx` of packed `bytes`.
    pub fn read(self, bytes: &[u8], idx: usize) -> f32 {
        match self {
            SmallFloat::E2M1 => e2m1_to_f32(u32::from(bytes[idx / 2] >> (4 * (idx % 2)))),
            SmallFloat::E4M3 => e4m3_to_f32(bytes[idx]),
        }
    }
}

impl SmallScale {
    /// The scale that a byte represents.
    #[inline(always)]
    pub fn to_f32(self, code: u8) -> f32 {
        match self {
            SmallScale::E8M0 => e8m0_to_f32(code),
            SmallScale::E4M3 => e4m3_to_f32(code),
        }
    }
}

impl MicroScaled {
    /// The format of MLX's mode `mxfp4` and of gpt-oss.
    pub const MXFP4: MicroScaled = MicroScaled {
        element: SmallFloat::E2M1,
        group_size: 32,
        scale: SmallScale::E8M0,
        has_global_scale: false,
    };
    /// The format of MLX's mode `nvfp4`.
    pub const NVFP4: MicroScaled = MicroScaled {
        element: SmallFloat::E2M1,
        group_size: 16,
        scale: SmallScale::E4M3,
        has_global_scale: false,
    };
    /// NVFP4 with a scale of the whole matrix: that of ModelOpt and of compressed-tensors.
    pub const NVFP4_GLOBAL: MicroScaled =
        MicroScaled { has_global_scale: true, ..MicroScaled::NVFP4 };
    /// The format of MLX's mode `mxfp8`.
    pub const MXFP8: MicroScaled = MicroScaled {
        element: SmallFloat::E4M3,
        group_size: 32,
        scale: SmallScale::E8M0,
        has_global_scale: false,
    };
    /// The formats that have a name, with their names.
    pub const MODES: [(&str, MicroScaled); 4] = [
        ("mxfp4", Self::MXFP4),
        ("nvfp4", Self::NVFP4),
        ("nvfp4-global", Self::NVFP4_GLOBAL),
        ("mxfp8", Self::MXFP8),
    ];

    /// The format with the name `mode`.
    pub fn by_mode(mode: &str) -> Option<MicroScaled> {
        Self::MODES.iter().find(|known| known.0 == mode).map(|known| known.1)
    }

    /// The name of this format; `None` if it has none.
    pub fn mode(&self) -> Option<&'static str> {
        Self::MODES.iter().find(|known| known.1 == *self).map(|known| known.0)
    }

    /// Whether this is a named format, and rows of `cols` columns consist of whole groups.
    pub fn is_supported(&self, cols: usize) -> bool {
        self.mode().is_some() && cols.is_multiple_of(self.group_size)
    }

    /// Groups in a row of `cols` columns.
    pub fn n_groups(&self, cols: usize) -> usize {
        cols / self.group_size
    }
}

impl ScaledBlocks {
    /// The largest side of a block.
    pub const MAX_SIDE: usize = 1 << 16;

    /// Blocks of this many rows and columns, with the first row at the start of a block.
    pub fn new(block_rows: usize, block_cols: usize, scales: Float) -> ScaledBlocks {
        ScaledBlocks { block_rows, block_cols, scales, phase: 0 }
    }

    /// Whether the block's sides are within the supported range.
    pub fn is_supported(&self) -> bool {
        let sides = 1..=Self::MAX_SIDE;
        sides.contains(&self.block_rows)
            && sides.contains(&self.block_cols)
            && self.phase < self.block_rows
    }

    /// Number of blocks that `rows` rows touch.
    pub fn n_row_blocks(&self, rows: usize) -> usize {
        if rows == 0 { 0 } else { (self.phase + rows).div_ceil(self.block_rows) }
    }

    /// Number of blocks across `cols` columns.
    pub fn n_col_blocks(&self, cols: usize) -> usize {
        cols.div_ceil(self.block_cols)
    }

    /// Index of the scale of an element, in a matrix of `cols` columns.
    pub fn scale_index(&self, row: usize, col: usize, cols: usize) -> usize {
        (self.phase + row) / self.block_rows * self.n_col_blocks(cols) + col / self.block_cols
    }
}

// The conversions below are sums and selections without branches or tables, so that compilers
// vectorise loops of them.

/// The value of the lowest four bits: a sign, and 0, 0.5, 1, 1.5, 2, 3, 4 or 6.
#[inline(always)]
pub fn e2m1_to_f32(code: u32) -> f32 {
    let magnitude = (code & 7) << 22;
    let normal = magnitude + (126 << 23);
    // Values below one are the mantissa at the exponent of one, minus one.
    let small = (f32::from_bits(magnitude + (127 << 23)) - 1.0).to_bits();
    let bits = if magnitude < 1 << 23 { small } else { normal };
    f32::from_bits(bits | (code & 8) << 28)
}

/// The value of an E4M3 float; the codes 127 and 255 are NaN.
#[inline(always)]
pub fn e4m3_to_f32(code: u8) -> f32 {
    /// 2^-6, the smallest normal.
    const SMALLEST: f32 = 0.015_625;
    let code = u32::from(code);
    let magnitude = (code & 0x7f) << 20;
    let normal = magnitude + (120 << 23);
    let small = (f32::from_bits(magnitude + (121 << 23)) - SMALLEST).to_bits();
    let bits = if magnitude < 1 << 23 { small } else { normal };
    let bits = if magnitude == 0x7f << 20 { 0x7fc0_0000 } else { bits };
    f32::from_bits(bits | (code & 0x80) << 24)
}

/// `2^(code - 127)`; 255 is NaN.
#[inline(always)]
pub fn e8m0_to_f32(code: u8) -> f32 {
    let code = u32::from(code);
    // 2^-127 is a subnormal `f32`.
    let bits = if code == 0 { 1 << 22 } else { code << 23 };
    f32::from_bits(if code == 255 { 0x7fc0_0000 } else { bits })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{MatrixFormat, MatrixView};
    use super::*;

    /// The value of a small float by its definition: a sign, then an exponent and a mantissa of the
    /// given numbers of bits.
    fn by_definition(code: u32, exponent_bits: u32, mantissa_bits: u32) -> f64 {
        let mantissa = f64::from(code & ((1 << mantissa_bits) - 1)) / f64::from(1 << mantissa_bits);
        let exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1);
        let bias = (1 << (exponent_bits - 1)) - 1;
        let sign = if code >> (exponent_bits + mantissa_bits) & 1 == 1 { -1.0 } else { 1.0 };
        let power = |it: i32| 2f64.powi(it - bias);
        match exponent {
            0 => sign * mantissa * power(1),
            it => sign * (1.0 + mantissa) * power(it as i32),
        }
    }

    #[test]
    fn small_floats_are_what_their_bits_say() {
        for code in 0..16 {
            let want = by_definition(code, 2, 1) as f32;
            assert_eq!(e2m1_to_f32(code | 0xf0).to_bits(), want.to_bits(), "{code}");
        }
        for code in 0..=255u8 {
            let got = e4m3_to_f32(code);
            if code & 0x7f == 0x7f {
                assert!(got.is_nan(), "{code}");
            } else {
                let want = by_definition(u32::from(code), 4, 3) as f32;
                assert_eq!(got.to_bits(), want.to_bits(), "{code}");
            }
        }
        for code in 0..255u8 {
            assert_eq!(f64::from(e8m0_to_f32(code)), 2f64.powi(i32::from(code) - 127), "{code}");
        }
        assert!(e8m0_to_f32(255).is_nan());
        assert_eq!(e4m3_to_f32(0x7e), 448.0);
        assert_eq!((0..8).map(e2m1_to_f32).sum::<f32>(), 18.0);
    }

    /// The code with the nearest value; of two, the even one.
    fn nearest(value: f32, codes: std::ops::Range<u32>, decode: impl Fn(u32) -> f32) -> u32 {
        let key = |code: &u32| {
            let distance = (f64::from(decode(*code)) - f64::from(value)).abs();
            (distance, code & 1)
        };
        let is_number = |code: &u32| !decode(*code).is_nan();
        let order = |a: &u32, b: &u32| key(a).partial_cmp(&key(b)).expect("numbers");
        codes.filter(is_number).min_by(order).expect("some number")
    }

    proptest! {
        #[test]
        fn decoding_a_micro_scaled_row_gives_back_what_was_encoded(
            values in prop::collection::vec(-6.0f32..6.0, 64),
            mode in 0..MicroScaled::MODES.len(),
            power in 100..150u8,
        ) {
            let format = MicroScaled::MODES[mode].1;
            let scale = match format.scale { SmallScale::E8M0 => power, SmallScale::E4M3 => power / 2 };
            let decode = |code: u32| match format.element {
                SmallFloat::E2M1 => e2m1_to_f32(code),
                SmallFloat::E4M3 => e4m3_to_f32(code as u8),
            };
            let codes: Vec<u32> = values.iter()
                .map(|value| nearest(*value, 0..1 << format.element.bits(), decode)).collect();
            let weight: Vec<u8> = match format.element {
                SmallFloat::E2M1 => codes.chunks(2).map(|pair| (pair[0] | pair[1] << 4) as u8).collect(),
                SmallFloat::E4M3 => codes.iter().map(|code| *code as u8).collect(),
            };
            let scales = vec![scale; format.n_groups(64)];
            let stored_global_scale = 0.375f32.to_le_bytes();
            let (global_scale, biases) = if format.has_global_scale { (0.375, &stored_global_scale[..]) } else { (1.0, &[][..]) };
            let format = MatrixFormat::Micro(format);
            let view = MatrixView {
                rows: 1, cols: 64, format, weight: &weight, scales: &scales, biases,
            };
            view.assert_sizes();
            prop_assert_eq!(view.global_scale(), global_scale);
            let mut out = vec![0.0; 64];
            view.decode_row(0, &mut out);
            let scale = MicroScaled::MODES[mode].1.scale.to_f32(scale) * global_scale;
            for ((out, value), code) in out.iter().zip(&values).zip(&codes) {
                prop_assert_eq!(*out, decode(*code) * scale);
                // The widest gap of E2M1 below 6 is 2, of E4M3 a sixteenth of the value.
                prop_assert!((out / scale - value).abs() <= 1.0);
            }
        }

        #[test]
        fn rows_of_scaled_blocks_survive_slicing(
            rows in 1..40usize,
            cols in 1..40usize,
            sides in (1..9usize, 1..9usize),
            cuts in (0..100usize, 0..100usize),
        ) {
            let blocks = ScaledBlocks::new(sides.0, sides.1, Float::F32);
            let format = MatrixFormat::Blocks(blocks);
            let weight: Vec<u8> = (0..rows * cols).map(|i| (i * 7 % 126) as u8).collect();
            let n = rows.div_ceil(sides.0) * cols.div_ceil(sides.1);
            let scales: Vec<u8> = (0..n).flat_map(|i| (i as f32 + 0.5).to_le_bytes()).collect();
            let view = MatrixView { rows, cols, format, weight: &weight, scales: &scales, biases: &[] };
            view.assert_sizes();
            let mut whole = vec![0.0; cols];
            let mut part = vec![0.0; cols];
            let start = cuts.0 % rows;
            let once = view.slice_rows(start, rows - start);
            once.assert_sizes();
            let again = cuts.1 % once.rows;
            let twice = once.slice_rows(again, once.rows - again);
            twice.assert_sizes();
            for row in 0..twice.rows {
                view.decode_row(start + again + row, &mut whole);
                twice.decode_row(row, &mut part);
                prop_assert_eq!(&whole, &part);
                let at = (start + again + row) / sides.0 * cols.div_ceil(sides.1);
                let want = e4m3_to_f32(weight[(start + again + row) * cols]) * (at as f32 + 0.5);
                prop_assert_eq!(part[0], want);
            }
        }
    }

    #[test]
    fn transposed_matrices_decode_by_columns() {
        let weight: Vec<u8> = (0..6).flat_map(|i| (i as f32).to_le_bytes()).collect();
        let format = MatrixFormat::Transposed(Float::F32);
        let view =
            MatrixView { rows: 2, cols: 3, format, weight: &weight, scales: &[], biases: &[] };
        view.assert_sizes();
        let mut out = [0.0; 3];
        view.decode_row(1, &mut out);
        assert_eq!(out, [1.0, 3.0, 5.0]);
    }
}
