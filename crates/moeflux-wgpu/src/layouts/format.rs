//! The layout of weights on the device: elements as stored, scales and biases paired.

use std::borrow::Cow;
use std::ops::Range;

use moeflux_core::quant::{
    Affine, AffineBias, BlockType, Float, MatrixFormat, MatrixView, MicroScaled, NF4_GROUP,
    SmallFloat, SmallScale,
};
use wgpu::WriteOnly;

use crate::kernels::blocks::{has_biases, largest_code};
use crate::kernels::shared::{
    FLOATS_APART, FLOATS_SYMMETRIC, FORMAT_AFFINE, FORMAT_BF16, FORMAT_E2M1, FORMAT_E4M3,
    FORMAT_E4M3_BLOCKS, FORMAT_F16, FORMAT_F32, FORMAT_GGML, FORMAT_NF4, SMALL_APART, SMALL_E4M3,
    SMALL_GLOBAL, SMALL_SIXTEEN, WeightFormat,
};
use crate::kernels::source::unit_fours;

/// Columns of a block.
pub(crate) const BLOCK: usize = 32;

/// Where parts of matrices may begin.
pub(crate) const ALIGN: usize = 16;

/// How kernels read the elements of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Decoder {
    format: MatrixFormat,
    /// Whether biases of affine integers, and scales of all of a matrix, are apart from scales, as in
    /// checkpoints.
    is_apart: bool,
}

/// What cooperative matrices of f16 take of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum F16Operand {
    /// Integers of four bits, less the middle of their range, times their scales; biases, where these
    /// are not those of symmetric integers, meet sums of activations.
    Integers {
        /// Whether there are such biases.
        have_biases: bool,
    },
    /// E2M1 times their scales.
    SmallFloats,
    /// Integers of blocks of ggml times their scales; where there are biases that are not those of
    /// centred integers, these meet sums of activations.
    Blocks {
        /// Whether there are such biases.
        have_biases: bool,
    },
    /// Elements of any kind as sums of this many halves: one holds those of eleven bits.
    Sums(u32),
}

impl F16Operand {
    /// Whether biases meet sums of activations.
    pub(crate) fn takes_sums(self) -> bool {
        match self {
            F16Operand::Integers { have_biases } | F16Operand::Blocks { have_biases } => {
                have_biases
            }
            F16Operand::SmallFloats | F16Operand::Sums(_) => false,
        }
    }

    /// The constant `SUMMANDS` of `coop_matmul.wgsl`.
    pub(crate) fn summands(self) -> u32 {
        match self {
            F16Operand::Sums(n) => n,
            F16Operand::Integers { .. } | F16Operand::SmallFloats | F16Operand::Blocks { .. } => 0,
        }
    }
}

impl Decoder {
    pub(crate) fn new(format: MatrixFormat) -> Decoder {
        // Transposed matrices are turned round on their way to the device.
        let format = match format {
            MatrixFormat::Transposed(float) => MatrixFormat::Dense(float),
            // Pieces say themselves how far into a rectangle they begin.
            MatrixFormat::Blocks(mut blocks) => {
                blocks.phase = 0;
                MatrixFormat::Blocks(blocks)
            }
            other => other,
        };
        Decoder { format, is_apart: false }
    }

    /// This decoder for biases that are apart from scales, or next to them.
    pub(crate) fn apart(self, is_apart: bool) -> Decoder {
        Decoder { is_apart, ..self }
    }

    /// The constants `FORMAT`, `BITS` and `FLOATS`.
    pub(crate) fn constants(self) -> WeightFormat {
        let [format, bits, floats] = self.words();
        WeightFormat { format, bits, floats }
    }

    fn words(self) -> [u32; 3] {
        let floats = |float| match float {
            Float::BF16 => 0,
            Float::F16 => 1,
            Float::F32 => 2,
        };
        match self.format {
            MatrixFormat::Affine(it) => {
                let biases = match it.bias {
                    AffineBias::Symmetric => FLOATS_SYMMETRIC,
                    AffineBias::Stored if self.is_apart => FLOATS_APART,
                    AffineBias::Stored => 0,
                };
                [FORMAT_AFFINE, u32::from(it.bits), floats(it.params) + biases]
            }
            MatrixFormat::Dense(float) | MatrixFormat::Transposed(float) => match float {
                Float::F32 => [FORMAT_F32, 0, 0],
                Float::F16 => [FORMAT_F16, 0, 0],
                Float::BF16 => [FORMAT_BF16, 0, 0],
            },
            MatrixFormat::Ggml(it) => [FORMAT_GGML, it.id(), 0],
            MatrixFormat::Micro(it) => {
                let element = match it.element {
                    SmallFloat::E2M1 => FORMAT_E2M1,
                    SmallFloat::E4M3 => FORMAT_E4M3,
                };
                let bits = [
                    (it.scale == SmallScale::E4M3, SMALL_E4M3),
                    (it.group_size == 16, SMALL_SIXTEEN),
                    (it.has_global_scale, SMALL_GLOBAL),
                    (it.has_global_scale && self.is_apart, SMALL_APART),
                ];
                let bits = bits.iter().filter(|bit| bit.0).map(|bit| bit.1).sum();
                [element, bits, 0]
            }
            MatrixFormat::Blocks(it) => [FORMAT_E4M3_BLOCKS, 0, floats(it.scales)],
            MatrixFormat::Nf4 => [FORMAT_NF4, 0, 0],
        }
    }

    /// The constants for devices that read halves below the smallest normal, or do not.
    pub(crate) fn constants_with(self, reads_subnormal_f16: bool) -> WeightFormat {
        let constants = self.constants();
        if !self.is_e2m1() && self.block_type().is_none() {
            return constants;
        }
        WeightFormat { floats: u32::from(reads_subnormal_f16), ..constants }
    }

    /// Whether elements are floats of four bits.
    pub(crate) fn is_e2m1(self) -> bool {
        matches!(self.format, MatrixFormat::Micro(it) if it.element == SmallFloat::E2M1)
    }

    /// How elements are stored.
    pub(crate) fn format(self) -> MatrixFormat {
        self.format
    }

    /// The affine format, where it is one.
    pub(crate) fn affine(self) -> Option<Affine> {
        match self.format {
            MatrixFormat::Affine(affine) => Some(affine),
            _ => None,
        }
    }

    /// The largest magnitude of integers times how many of them kernels for few rows add up before
    /// they are scaled; `None` where elements are no integers.
    pub(crate) fn largest_sum(self) -> Option<u32> {
        match self.format {
            // Of eight bits 128 less than stored.
            MatrixFormat::Affine(Affine { bits: 8, .. }) => Some(128 * 32),
            MatrixFormat::Affine(it) => Some(((1 << it.bits) - 1) * 32),
            MatrixFormat::Ggml(it) => Some(largest_code(it) * 16),
            _ => None,
        }
    }

    /// The type of ggml, where it is one.
    pub(crate) fn block_type(self) -> Option<BlockType> {
        match self.format {
            MatrixFormat::Ggml(it) => Some(it),
            _ => None,
        }
    }

    /// What cooperative matrices of f16 take.
    pub(crate) fn f16_operand(self) -> F16Operand {
        match self.format {
            MatrixFormat::Affine(it) if it.bits == 4 && it.params == Float::BF16 => {
                F16Operand::Integers { have_biases: it.bias == AffineBias::Stored }
            }
            MatrixFormat::Micro(MicroScaled::MXFP4) => F16Operand::SmallFloats,
            MatrixFormat::Ggml(it) => F16Operand::Blocks { have_biases: has_biases(it) },
            // A single times an element has more bits than a half.
            MatrixFormat::Micro(it) if it.has_global_scale => F16Operand::Sums(2),
            MatrixFormat::Dense(Float::BF16 | Float::F16) | MatrixFormat::Micro(_) => {
                F16Operand::Sums(1)
            }
            _ => F16Operand::Sums(2),
        }
    }

    /// What kernels know as `Matrix`.
    pub(crate) fn params(self, cols: usize) -> [u32; 8] {
        let word = |number: usize| u32::try_from(number).expect("matrices are small");
        let group_shift = match self.format {
            MatrixFormat::Affine(it) => (it.group_size / BLOCK).ilog2(),
            MatrixFormat::Nf4 => (NF4_GROUP / BLOCK).ilog2(),
            _ => 0,
        };
        let [rows, block_cols, n_cols] = match self.format {
            MatrixFormat::Blocks(it) => [it.block_rows, it.block_cols, it.n_col_blocks(cols)],
            _ => [1; 3],
        };
        let n_blocks = cols.div_ceil(BLOCK);
        [word(cols), word(n_blocks), group_shift, word(rows), word(block_cols), word(n_cols), 0, 0]
    }

    /// Units of a row that lanes of `matmul/matvec.wgsl` take.
    pub(crate) fn n_units(self, cols: usize) -> usize {
        let fours = unit_fours(self.constants()) as usize;
        cols.div_ceil(BLOCK) * (BLOCK / 4) / fours
    }

    /// Bytes of a row's elements on the device.
    pub(crate) fn row_bytes(self, cols: usize) -> usize {
        self.format.row_bytes(cols.next_multiple_of(BLOCK))
    }

    /// Bytes of the scales of some rows on the device.
    fn scale_bytes(self, view: &MatrixView<'_>) -> usize {
        let bytes = match self.format {
            MatrixFormat::Dense(_) | MatrixFormat::Transposed(_) | MatrixFormat::Ggml(_) => 0,
            MatrixFormat::Affine(it) => {
                let n_params = if it.bias == AffineBias::Stored { 2 } else { 1 };
                view.rows * it.n_groups(view.cols) * n_params * it.params.bytes()
            }
            MatrixFormat::Micro(it) => {
                let global = if it.has_global_scale { Float::F32.bytes() } else { 0 };
                global + view.rows * view.cols.div_ceil(BLOCK) * (BLOCK / it.group_size)
            }
            MatrixFormat::Blocks(_) | MatrixFormat::Nf4 => {
                view.format.scale_bytes(view.rows, view.cols)
            }
        };
        bytes.next_multiple_of(4)
    }
}

/// A matrix as the device takes it.
pub(crate) struct Packed<'a> {
    pub(crate) elements: Cow<'a, [u8]>,
    pub(crate) scales: Vec<u8>,
}

impl<'a> Packed<'a> {
    /// Brings the bytes of a matrix, which is not transposed, into their
    /// places.
    pub(crate) fn new(view: &MatrixView<'a>) -> Packed<'a> {
        let decoder = Decoder::new(view.format);
        let row = view.format.row_bytes(view.cols);
        let elements = if view.cols.is_multiple_of(BLOCK) {
            Cow::Borrowed(view.weight)
        } else {
            Cow::Owned(pad_rows(view.weight, row, decoder.row_bytes(view.cols)))
        };
        let mut scales = match view.format {
            MatrixFormat::Affine(it) if it.bias == AffineBias::Stored => {
                pairs(view.scales, view.biases, it.params.bytes())
            }
            MatrixFormat::Micro(it) => {
                let to = view.cols.div_ceil(BLOCK) * (BLOCK / it.group_size);
                let scales = pad_rows(view.scales, it.n_groups(view.cols), to);
                // What all of the matrix shares comes first.
                let global: &[u8] = if it.has_global_scale { view.biases } else { &[] };
                [global, &scales].concat()
            }
            _ => view.scales.to_vec(),
        };
        scales.resize(scales.len().next_multiple_of(4), 0);
        Packed { elements, scales }
    }
}

/// Rows of `from` bytes as rows of `to` bytes.
fn pad_rows(bytes: &[u8], from: usize, to: usize) -> Vec<u8> {
    if from == to || from == 0 {
        return bytes.to_vec();
    }
    let mut out = Vec::with_capacity(bytes.len() / from * to);
    for row in bytes.chunks_exact(from) {
        out.extend_from_slice(row);
        out.resize(out.len() + to - from, 0);
    }
    out
}

/// Each scale with its bias after it.
fn pairs(scales: &[u8], biases: &[u8], size: usize) -> Vec<u8> {
    if size == 2 {
        let scales = scales.as_chunks::<2>().0.iter();
        let pairs = scales.zip(biases.as_chunks::<2>().0);
        let pairs: Vec<[u8; 4]> = pairs.map(|(s, b)| [s[0], s[1], b[0], b[1]]).collect();
        return pairs.into_flattened();
    }
    let mut out = Vec::with_capacity(scales.len() + biases.len());
    for (scale, bias) in scales.chunks_exact(size).zip(biases.chunks_exact(size)) {
        out.extend_from_slice(scale);
        out.extend_from_slice(bias);
    }
    out
}

/// The rows of a transposed matrix, one after the other.
pub(crate) fn turn_round(view: &MatrixView<'_>, float: Float) -> Vec<u8> {
    let size = float.bytes();
    let mut out = vec![0; view.weight.len()];
    for (col, inputs) in view.weight.chunks_exact(view.rows * size).enumerate() {
        for (row, element) in inputs.chunks_exact(size).enumerate() {
            out[(row * view.cols + col) * size..][..size].copy_from_slice(element);
        }
    }
    out
}

/// Where a matrix, or some rows of one, is in a buffer; both in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) elements: u32,
    pub(crate) scales: u32,
}

/// Bytes that `view` takes, and where its scales begin.
pub(crate) fn sizes(view: &MatrixView<'_>) -> (usize, usize) {
    let decoder = Decoder::new(view.format);
    let scales = (view.rows * decoder.row_bytes(view.cols)).next_multiple_of(ALIGN);
    let bytes = scales + decoder.scale_bytes(view);
    (bytes.next_multiple_of(ALIGN), scales)
}

/// Where a matrix is that begins at byte `at` of a buffer, its scales this many bytes after that.
pub(crate) fn place(at: usize, scales: usize) -> Place {
    let word = |byte: usize| u32::try_from(byte / 4).expect("bindings are counted in 32 bits");
    Place { elements: word(at), scales: word(at + scales) }
}

/// How many of a matrix's first bytes on the device are those that are stored,
/// unless something about them has to be changed.
pub(crate) fn as_stored(view: &MatrixView<'_>) -> usize {
    let is_changed = matches!(view.format, MatrixFormat::Transposed(_));
    let bytes = view.rows * view.format.row_bytes(view.cols);
    let is_whole = view.cols.is_multiple_of(BLOCK) && bytes.is_multiple_of(ALIGN);
    if is_changed || !is_whole { 0 } else { bytes }
}

/// Writes some bytes of a matrix, of those that [`sizes`] counts: all, some of the
/// [first](as_stored), or what is after these. Each is written once and in order: mapped memory
/// may be slow at all else.
pub(crate) fn write_packed(
    view: &MatrixView<'_>,
    scales_at: usize,
    range: Range<usize>,
    mut out: WriteOnly<'_, [u8]>,
) {
    if range.end <= as_stored(view) {
        out.copy_from_slice(&view.weight[range]);
        return;
    }
    let turned;
    let mut view = *view;
    if let MatrixFormat::Transposed(float) = view.format {
        turned = turn_round(&view, float);
        view.format = MatrixFormat::Dense(float);
        view.weight = &turned;
    }
    let packed = Packed::new(&view);
    let elements = &packed.elements[range.start..];
    let (n_elements, n_scales) = (elements.len(), packed.scales.len());
    let scales_at = scales_at - range.start;
    out.slice(..n_elements).copy_from_slice(elements);
    out.slice(n_elements..scales_at).fill(0);
    out.slice(scales_at..scales_at + n_scales).copy_from_slice(&packed.scales);
    out.slice(scales_at + n_scales..).fill(0);
}
