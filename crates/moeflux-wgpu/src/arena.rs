//! Weights on the device: how their bytes lie there, and where there is room.
//!
//! A matrix is rows of blocks of 32 columns, the last padded with zeros, and
//! its scales, with the bias beside each where there are biases; see
//! `formats.wgsl`. A matrix that no binding holds is cut into pieces, by rows.

use std::borrow::Cow;
use std::ops::Range;

use moeflux_backend::Inputs;
use moeflux_core::quant::{
    Affine, Float, MatrixFormat, MatrixView, MicroScaled, SmallFloat, SmallScale,
};
use wgpu::{PollType, WriteOnly};

use crate::encoder::{Encoder, Mem};
use crate::shader::unit_fours;

/// Columns of a block.
pub(crate) const BLOCK: usize = 32;

/// Where parts of matrices may begin.
const ALIGN: usize = 16;

/// How kernels read the elements of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Decoder {
    format: MatrixFormat,
    /// Whether biases of affine integers lie apart from their scales, as in
    /// checkpoints.
    is_apart: bool,
}

/// What units for matrices of halves take of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InHalves {
    /// Integers of four bits times their scales; biases meet sums of activations.
    Integers,
    /// E2M1 times their scales.
    SmallFloats,
    /// Elements of any kind as sums of so many halves: one holds those of eleven bits.
    Sums(u32),
}

impl InHalves {
    /// The constant `SUMMANDS` of `matmul_halves.wgsl`.
    pub(crate) fn summands(self) -> u32 {
        match self {
            InHalves::Sums(n) => n,
            InHalves::Integers | InHalves::SmallFloats => 0,
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

    /// The same of a matrix that lies as in checkpoints, or not.
    pub(crate) fn apart(self, is_apart: bool) -> Decoder {
        Decoder { is_apart, ..self }
    }

    /// The constants `FORMAT`, `BITS` and `FLOATS`.
    pub(crate) fn consts(self) -> [u32; 3] {
        let floats = |float| match float {
            Float::BF16 => 0,
            Float::F16 => 1,
            Float::F32 => 2,
        };
        match self.format {
            MatrixFormat::Affine(it) => {
                let apart = if self.is_apart { 3 } else { 0 };
                [0, u32::from(it.bits), floats(it.params) + apart]
            }
            MatrixFormat::Dense(float) | MatrixFormat::Transposed(float) => match float {
                Float::F32 => [1, 0, 0],
                Float::F16 => [2, 0, 0],
                Float::BF16 => [3, 0, 0],
            },
            MatrixFormat::Micro(it) => {
                let element = match it.element {
                    SmallFloat::E2M1 => 4,
                    SmallFloat::E4M3 => 5,
                };
                let scale = u32::from(it.scale == SmallScale::E4M3);
                [element, scale + if it.group_size == 16 { 2 } else { 0 }, 0]
            }
            MatrixFormat::Blocks(it) => [6, 0, floats(it.scales)],
        }
    }

    /// The same where kernels may read halves below the smallest normal, or not.
    pub(crate) fn consts_with(self, reads_small_halves: bool) -> [u32; 3] {
        let [format, bits, floats] = self.consts();
        [format, bits, if self.is_e2m1() { u32::from(reads_small_halves) } else { floats }]
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

    /// What units for matrices of halves take.
    pub(crate) fn in_halves(self) -> InHalves {
        match self.format {
            MatrixFormat::Affine(it) if it.bits == 4 && it.params == Float::BF16 => {
                InHalves::Integers
            }
            MatrixFormat::Micro(MicroScaled::MXFP4) => InHalves::SmallFloats,
            MatrixFormat::Dense(Float::BF16 | Float::F16) | MatrixFormat::Micro(_) => {
                InHalves::Sums(1)
            }
            _ => InHalves::Sums(2),
        }
    }

    /// What kernels know as `Matrix`.
    pub(crate) fn params(self, cols: usize) -> [u32; 8] {
        let word = |it: usize| u32::try_from(it).expect("matrices are small");
        let group_shift = match self.format {
            MatrixFormat::Affine(it) => (it.group_size / BLOCK).ilog2(),
            _ => 0,
        };
        let [rows, block_cols, n_cols] = match self.format {
            MatrixFormat::Blocks(it) => [it.block_rows, it.block_cols, it.n_col_blocks(cols)],
            _ => [1; 3],
        };
        let n_blocks = cols.div_ceil(BLOCK);
        [word(cols), word(n_blocks), group_shift, word(rows), word(block_cols), word(n_cols), 0, 0]
    }

    /// Units of a row that lanes of `matvec.wgsl` take.
    pub(crate) fn n_units(self, cols: usize) -> usize {
        let fours = unit_fours(self.consts()[0]) as usize;
        cols.div_ceil(BLOCK) * (BLOCK / 4) / fours
    }

    /// Bytes of a row's elements on the device.
    pub(crate) fn row_bytes(self, cols: usize) -> usize {
        self.format.row_bytes(cols.next_multiple_of(BLOCK))
    }

    /// Bytes of the scales of some rows on the device.
    fn scale_bytes(self, view: &MatrixView<'_>) -> usize {
        let bytes = match self.format {
            MatrixFormat::Dense(_) | MatrixFormat::Transposed(_) => 0,
            MatrixFormat::Affine(it) => {
                let pair = if it.params == Float::F32 { 8 } else { 4 };
                view.rows * it.n_groups(view.cols) * pair
            }
            MatrixFormat::Micro(it) => {
                view.rows * view.cols.div_ceil(BLOCK) * (BLOCK / it.group_size)
            }
            MatrixFormat::Blocks(_) => view.format.scale_bytes(view.rows, view.cols),
        };
        bytes.next_multiple_of(4)
    }
}

/// A matrix as the device takes it.
pub(crate) struct Packed<'a> {
    elements: Cow<'a, [u8]>,
    scales: Vec<u8>,
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
            MatrixFormat::Affine(it) => pairs(view.scales, view.biases, it.params.bytes()),
            MatrixFormat::Micro(it) => {
                let to = view.cols.div_ceil(BLOCK) * (BLOCK / it.group_size);
                pad_rows(view.scales, it.n_groups(view.cols), to)
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

/// Each scale with its bias behind it.
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

/// The rows of a transposed matrix, one behind the other.
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

/// Where a matrix, or some rows of one, lies in a buffer; both in words.
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

/// Where a matrix is that begins at byte `at` of a buffer, its scales so many
/// bytes behind that.
pub(crate) fn place(at: usize, scales: usize) -> Place {
    let word = |it: usize| u32::try_from(it / 4).expect("bindings are counted in 32 bits");
    Place { elements: word(at), scales: word(at + scales) }
}

/// Rows of a resident matrix that lie in one buffer.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) mem: Mem,
    pub(crate) rows: Range<usize>,
    pub(crate) place: Place,
    /// Rows of the first rectangle that lie before the first row.
    pub(crate) phase: usize,
}

/// A resident matrix.
#[derive(Clone, Debug)]
pub(crate) struct Matrix {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) decoder: Decoder,
    pub(crate) inputs: Inputs,
    pub(crate) pieces: Vec<Piece>,
}

/// Buffers that weights share, so that kernels find those of a layer in one.
#[derive(Debug, Default)]
pub(crate) struct Slabs {
    last: Option<(Mem, usize)>,
    /// Bytes of the next one.
    next_bytes: usize,
    /// Bytes written since the device was last waited for.
    written: u64,
}

const FIRST_SLAB: usize = 1 << 20;
const LAST_SLAB: usize = 256 << 20;

/// Bytes on their way to the device at a time.
const IN_FLIGHT: u64 = 64 << 20;

impl Slabs {
    /// Room for some bytes: the buffer and the first byte.
    fn take(&mut self, encoder: &mut Encoder, bytes: usize) -> (Mem, usize) {
        if let Some((mem, used)) = &mut self.last
            && *used + bytes <= usize::try_from(mem.bytes()).unwrap_or(usize::MAX)
        {
            let at = *used;
            *used += bytes;
            return (mem.clone(), at);
        }
        let most = encoder.context().max_binding_bytes();
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let slab = self.next_bytes.clamp(FIRST_SLAB, LAST_SLAB).min(most);
        self.next_bytes = 2 * slab;
        if bytes > slab / 2 {
            return (encoder.lasting_storage(bytes as u64, "weights"), 0);
        }
        let mem = encoder.lasting_storage(slab as u64, "weights");
        self.last = Some((mem.clone(), bytes));
        (mem, 0)
    }

    fn write(&mut self, encoder: &Encoder, mem: &Mem, at: usize, bytes: &[u8]) {
        if encoder.has_run_out() {
            return;
        }
        let context = encoder.context();
        for (i, part) in bytes.chunks(IN_FLIGHT as usize).enumerate() {
            let at = at + i * IN_FLIGHT as usize;
            // Copies are whole words; all parts but the last are.
            let whole = part.len() / 4 * 4;
            if whole > 0 {
                context.queue.write_buffer(&mem.buffer, at as u64, &part[..whole]);
            }
            if whole < part.len() {
                let mut word = [0; 4];
                word[..part.len() - whole].copy_from_slice(&part[whole..]);
                context.queue.write_buffer(&mem.buffer, (at + whole) as u64, &word);
            }
            self.written += part.len() as u64;
            if self.written >= IN_FLIGHT {
                self.written = 0;
                context.queue.submit([]);
                // What fails shows at the next read-back.
                let _ = context.device.poll(PollType::wait_indefinitely());
            }
        }
    }

    /// Takes a matrix.
    pub(crate) fn load(
        &mut self,
        encoder: &mut Encoder,
        view: &MatrixView<'_>,
        inputs: Inputs,
    ) -> Matrix {
        let turned;
        let mut view = *view;
        if let MatrixFormat::Transposed(float) = view.format {
            turned = turn_round(&view, float);
            view.format = MatrixFormat::Dense(float);
            view.weight = &turned;
        }
        let most = encoder.context().max_binding_bytes();
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let (bytes, _) = sizes(&view);
        let n_pieces = bytes.div_ceil(most - most / 16).max(1);
        let rows = view.rows.div_ceil(n_pieces).next_multiple_of(64).min(view.rows.max(1));
        let mut pieces = Vec::with_capacity(n_pieces);
        for first in (0..view.rows).step_by(rows) {
            let rows = first..view.rows.min(first + rows);
            let part = view.slice_rows(first, rows.len());
            let (bytes, scales) = sizes(&part);
            let (mem, at) = self.take(encoder, bytes);
            let packed = Packed::new(&part);
            self.write(encoder, &mem, at, &packed.elements);
            self.write(encoder, &mem, at + scales, &packed.scales);
            let phase = match part.format {
                MatrixFormat::Blocks(it) => it.phase,
                _ => 0,
            };
            pieces.push(Piece { mem, rows, place: place(at, scales), phase });
        }
        let decoder = Decoder::new(view.format);
        Matrix { rows: view.rows, cols: view.cols, decoder, inputs, pieces }
    }
}

/// How many of a matrix's first bytes on the device are those that are stored,
/// unless something about them has to be changed.
pub(crate) fn as_stored(view: &MatrixView<'_>) -> usize {
    let is_changed = matches!(view.format, MatrixFormat::Transposed(_));
    let bytes = view.rows * view.format.row_bytes(view.cols);
    let is_whole = view.cols.is_multiple_of(BLOCK) && bytes.is_multiple_of(ALIGN);
    if is_changed || !is_whole { 0 } else { bytes }
}

/// Writes some bytes of a matrix, of those that [`sizes`] counts: all, some of
/// the [first](as_stored), or what is behind these. Each is written once and in
/// order: mapped memory may be slow at all else.
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
