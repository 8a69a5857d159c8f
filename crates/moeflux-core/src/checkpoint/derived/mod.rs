//! Tensors that files do not hold as kernels read them. Their bytes are computed from other tensors
//! each time they are read, so that readers need not know of it.
//!
//! All of a checkpoint are in one file that exists only here: its offsets are those that extents of
//! derived tensors have.

mod absmax;
mod integers;
mod transpose;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

pub(crate) use integers::{CodeLayout, Input, IntegerMatrix, Plane, ZeroLayout};

use super::{FileReader, FormatError};
use crate::quant::{BlockType, Float, MatrixFormat, MatrixView, e4m3_to_f32, e8m0_to_f32};
use crate::{DerivedBytes, Extent, FileIdx, SourceFile};

/// Derived tensors begin at multiples of this, so that reads of whole blocks touch one tensor.
const ALIGNMENT: u64 = 4096;

/// Results of at most this many bytes are kept.
const KEPT_BYTES: usize = 8192;

/// How the bytes of a tensor follow from those of others.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Recipe {
    /// Integers with scales and zero points, in the layouts of GPTQ, AWQ or compressed-tensors. The
    /// inputs are those that [`Plane::inputs`] names.
    Integers(IntegerMatrix, Plane),
    /// Signed bytes, as bytes that are 128 larger.
    SignedBytes,
    /// Floats of 32 bits: themselves, or where checkpoints hold divisors, their inverses.
    GlobalScale {
        /// Whether matrices are divided by them.
        is_divisor: bool,
    },
    /// Powers of two in eight bits, as `f32`.
    PowersOfTwo,
    /// The scales of blocks of bitsandbytes, as `f32`, for each group of NF4: inputs are the levels
    /// of elements, and these scales or the codes for them with scales, levels and JSON of these
    /// codes.
    Absmax {
        /// Groups of a block.
        groups: usize,
    },
    /// Elements in E4M3, each run of which has a scale, as `f32`.
    ScaledE4m3 {
        /// How scales are stored.
        scales: Float,
    },
    /// Matrices of runs of bytes, turned: what was row by row is column by column. The bytes are those of
    /// all inputs, one after the other; those behind the matrices stay.
    Turned(Turned),
    /// Blocks of ggml, as `f32`.
    Decoded {
        /// Their type.
        blocks: BlockType,
        /// Elements of a row.
        cols: usize,
    },
    /// Blocks of ggml's NVFP4: their elements, two consecutive columns to a byte.
    GgmlNvfp4Elements,
    /// Blocks of ggml's NVFP4: their scales in E4M3.
    GgmlNvfp4Scales,
}

/// Matrices whose elements are runs of bytes, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turned {
    /// Matrices.
    pub n: usize,
    /// Rows of each, as the file has them.
    pub rows: usize,
    /// Columns of each.
    pub cols: usize,
    /// Bytes of an element.
    pub run: usize,
}

impl Turned {
    /// Bytes of all matrices; `None` if they are more than there can be, or a matrix has none.
    pub(crate) fn n_bytes(&self) -> Option<usize> {
        let each = self.rows.checked_mul(self.cols)?.checked_mul(self.run)?;
        if each == 0 { None } else { each.checked_mul(self.n) }
    }

    /// The matrices of these bytes column by column.
    fn compute(self, bytes: &[u8]) -> Vec<u8> {
        let Turned { n, rows, cols, run } = self;
        let mut out = Vec::with_capacity(bytes.len());
        let (matrices, rest) = bytes.split_at(n * rows * cols * run);
        for matrix in matrices.chunks_exact(rows * cols * run) {
            for col in 0..cols {
                for row in 0..rows {
                    out.extend_from_slice(&matrix[(row * cols + col) * run..][..run]);
                }
            }
        }
        out.extend_from_slice(rest);
        out
    }
}

/// The derived tensors of a checkpoint.
///
/// Threads may read while others add tensors.
#[derive(Debug)]
pub(crate) struct DerivedTensors {
    file: FileIdx,
    /// Reads the inputs.
    reader: FileReader,
    tensors: RwLock<Tensors>,
    /// The tensor of which a part was read last: the next part is likely to be asked for soon.
    last: Mutex<Option<Last>>,
}

/// A tensor of which parts are being read.
#[derive(Debug)]
struct Last {
    offset: u64,
    bytes: Arc<Vec<u8>>,
    /// Bytes that were not read yet: when all were, the memory is freed.
    n_left: usize,
}

#[derive(Debug, Default)]
struct Tensors {
    /// In the order of their offsets.
    all: Vec<Arc<Derived>>,
    by_name: HashMap<String, Extent>,
    end: u64,
}

#[derive(Debug)]
struct Derived {
    offset: u64,
    len: usize,
    inputs: Vec<Extent>,
    recipe: Recipe,
    kept: OnceLock<Vec<u8>>,
}

impl DerivedTensors {
    /// None yet. Inputs are in `files`, and extents of derived tensors are in the file that follows
    /// them.
    pub(crate) fn new(files: &[SourceFile]) -> DerivedTensors {
        DerivedTensors {
            file: FileIdx(u32::try_from(files.len()).expect("few files")),
            reader: FileReader::new(files),
            tensors: RwLock::default(),
            last: Mutex::default(),
        }
    }

    /// Adds the tensor of that name, of `len` bytes, unless it was added before.
    pub(crate) fn add(
        &self,
        name: &str,
        len: usize,
        inputs: Vec<Extent>,
        recipe: Recipe,
    ) -> Extent {
        let mut tensors = self.tensors.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(extent) = tensors.by_name.get(name) {
            return *extent;
        }
        let offset = tensors.end;
        tensors.end = (offset + len as u64).next_multiple_of(ALIGNMENT);
        let extent = Extent { file: self.file, offset, len };
        tensors.by_name.insert(name.to_owned(), extent);
        let kept = OnceLock::new();
        tensors.all.push(Arc::new(Derived { offset, len, inputs, recipe, kept }));
        extent
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.tensors.read().unwrap_or_else(PoisonError::into_inner).all.is_empty()
    }

    /// All bytes of a tensor, `n` of which are read now.
    fn whole(&self, tensor: &Derived, n: usize) -> Result<Arc<Vec<u8>>, FormatError> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.as_ref().is_none_or(|last| last.offset != tensor.offset) {
            let bytes = Arc::new(tensor.compute(&self.reader)?);
            *last = Some(Last { offset: tensor.offset, bytes, n_left: tensor.len });
        }
        let current = last.as_mut().expect("it was computed");
        let bytes = Arc::clone(&current.bytes);
        current.n_left = current.n_left.saturating_sub(n);
        if current.n_left == 0 {
            *last = None;
        }
        Ok(bytes)
    }

    /// The tensor that has a byte.
    fn find(&self, offset: u64) -> Option<Arc<Derived>> {
        let tensors = self.tensors.read().unwrap_or_else(PoisonError::into_inner);
        let after = tensors.all.partition_point(|tensor| tensor.offset <= offset);
        let tensor = tensors.all.get(after.checked_sub(1)?)?;
        (offset < tensor.offset + tensor.len as u64).then(|| Arc::clone(tensor))
    }
}

impl DerivedBytes for DerivedTensors {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize, FormatError> {
        let Some(tensor) = self.find(offset) else { return Ok(0) };
        let first = (offset - tensor.offset) as usize;
        let n = out.len().min(tensor.len - first);
        let out = &mut out[..n];
        if let Some(kept) = tensor.kept.get() {
            out.copy_from_slice(&kept[first..first + n]);
            return Ok(n);
        }
        let is_whole = n == tensor.len;
        if !is_whole && tensor.len > KEPT_BYTES {
            let bytes = self.whole(&tensor, n)?;
            out.copy_from_slice(&bytes[first..first + n]);
            return Ok(n);
        }
        let bytes = tensor.compute(&self.reader)?;
        out.copy_from_slice(&bytes[first..first + n]);
        if bytes.len() <= KEPT_BYTES {
            tensor.kept.get_or_init(|| bytes);
        }
        Ok(n)
    }

    fn inputs(&self, offset: u64) -> Vec<Extent> {
        self.find(offset).map_or_else(Vec::new, |tensor| tensor.inputs.clone())
    }
}

impl Derived {
    fn compute(&self, reader: &FileReader) -> Result<Vec<u8>, FormatError> {
        let inputs: Vec<Vec<u8>> =
            self.inputs.iter().map(|extent| reader.read(*extent)).collect::<Result<_, _>>()?;
        let bytes = self.recipe.compute(&inputs).map_err(|what| {
            let path = reader.path(self.inputs[0].file);
            FormatError::malformed(path, what)
        })?;
        assert_eq!(bytes.len(), self.len, "bytes of a derived tensor");
        Ok(bytes)
    }
}

impl Recipe {
    /// The bytes; the error says what is wrong with the inputs.
    fn compute(&self, inputs: &[Vec<u8>]) -> Result<Vec<u8>, String> {
        match self {
            Recipe::Integers(matrix, plane) => matrix.compute(*plane, inputs),
            Recipe::SignedBytes => Ok(inputs[0].iter().map(|byte| byte ^ 0x80).collect()),
            Recipe::GlobalScale { is_divisor } => {
                let mut out = Vec::with_capacity(inputs[0].len());
                for i in 0..inputs[0].len() / 4 {
                    let stored = Float::F32.read(&inputs[0], i);
                    let scale = if *is_divisor { 1.0 / stored } else { stored };
                    if !stored.is_finite() || !scale.is_finite() {
                        return Err(format!("the scale of a whole matrix is {stored}"));
                    }
                    out.extend_from_slice(&scale.to_le_bytes());
                }
                Ok(out)
            }
            Recipe::ScaledE4m3 { scales } => {
                let n_scales = inputs[1].len() / scales.bytes();
                let run = inputs[0].len().div_ceil(n_scales.max(1)).max(1);
                let value = |(idx, code): (usize, &u8)| {
                    (e4m3_to_f32(*code) * scales.read(&inputs[1], idx / run)).to_le_bytes()
                };
                Ok(inputs[0].iter().enumerate().flat_map(value).collect())
            }
            Recipe::Turned(turned) => Ok(turned.compute(&inputs.concat())),
            Recipe::Decoded { blocks, cols } => Ok(decoded(&inputs[0], *blocks, *cols)),
            Recipe::GgmlNvfp4Elements => Ok(nvfp4_blocks(&inputs[0]).flat_map(elements).collect()),
            Recipe::GgmlNvfp4Scales => Ok(nvfp4_blocks(&inputs[0]).flat_map(scales).collect()),
            Recipe::Absmax { groups } => absmax::scales(inputs, *groups),
            Recipe::PowersOfTwo => {
                Ok(inputs[0].iter().flat_map(|code| e8m0_to_f32(*code).to_le_bytes()).collect())
            }
        }
    }
}

/// The elements of rows of blocks.
fn decoded(bytes: &[u8], blocks: BlockType, cols: usize) -> Vec<u8> {
    let format = MatrixFormat::Ggml(blocks);
    let rows = bytes.len() / format.row_bytes(cols);
    let matrix = MatrixView { rows, cols, format, weight: bytes, scales: &[], biases: &[] };
    let mut values = vec![0.0; cols];
    let mut out = Vec::with_capacity(4 * rows * cols);
    for row in 0..rows {
        matrix.decode_row(row, &mut values);
        out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }
    out
}

/// Blocks of 64 columns: four scales, then for each 16 columns eight bytes, which have the first
/// eight columns in their lower halves and the others in their upper halves.
fn nvfp4_blocks(bytes: &[u8]) -> impl Iterator<Item = &[u8; 36]> {
    bytes.as_chunks::<36>().0.iter()
}

fn elements(block: &[u8; 36]) -> [u8; 32] {
    let mut out = [0; 32];
    let packed = block[4..].as_chunks::<8>().0;
    for (out, packed) in out.as_chunks_mut::<8>().0.iter_mut().zip(packed) {
        for i in 0..4 {
            let (low, high) = (packed[2 * i], packed[2 * i + 1]);
            out[i] = low & 15 | high << 4;
            out[4 + i] = low >> 4 | high & 0xf0;
        }
    }
    out
}

/// Without a sign; the code of NaN reads as zero.
fn scales(block: &[u8; 36]) -> [u8; 4] {
    std::array::from_fn(|g| if block[g] & 0x7f == 0x7f { 0 } else { block[g] & 0x7f })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::quant::MicroScaled;

    proptest! {
        #[test]
        fn planes_of_ggml_nvfp4_have_the_values_of_its_blocks(
            mut blocks in prop::collection::vec(any::<u8>(), 36 * 6),
        ) {
            // ggml reads scales without their sign.
            blocks.chunks_mut(36).flat_map(|block| &mut block[..4]).for_each(|scale| *scale &= 0x7f);
            let inputs = [blocks.clone()];
            let weight = Recipe::GgmlNvfp4Elements.compute(&inputs).unwrap();
            let scales = Recipe::GgmlNvfp4Scales.compute(&inputs).unwrap();
            let view = |format, weight, scales| MatrixView {
                rows: 2, cols: 192, format, weight, scales, biases: &[],
            };
            let planes = view(MatrixFormat::Micro(MicroScaled::NVFP4), &weight, &scales);
            let stored = view(MatrixFormat::Ggml(BlockType::NVFP4), &blocks, &[]);
            planes.assert_sizes();
            for row in 0..2 {
                let (mut got, mut want) = (vec![0.0; 192], vec![0.0; 192]);
                planes.decode_row(row, &mut got);
                stored.decode_row(row, &mut want);
                prop_assert_eq!(got, want);
            }
        }
    }

    #[test]
    fn scales_of_whole_matrices_are_factors() {
        let stored: Vec<u8> = [2.0f32, -0.5].into_iter().flat_map(f32::to_le_bytes).collect();
        let compute = |is_divisor, bytes: &[u8]| {
            Recipe::GlobalScale { is_divisor }.compute(&[bytes.to_vec()])
        };
        assert_eq!(compute(false, &stored).unwrap(), stored);
        let inverse = compute(true, &stored).unwrap();
        assert_eq!(Float::F32.read(&inverse, 0), 0.5);
        assert_eq!(Float::F32.read(&inverse, 1), -2.0);
        let err = compute(true, &0f32.to_le_bytes()).unwrap_err();
        assert_eq!(err, "the scale of a whole matrix is 0");
        assert!(compute(false, &f32::NAN.to_le_bytes()).is_err());
    }

    #[test]
    fn turned_matrices_are_column_by_column_and_the_rest_stays() {
        let turned = Turned { n: 2, rows: 2, cols: 3, run: 2 };
        let bytes: Vec<u8> = (0..30).collect();
        let (one, other) = bytes.split_at(11);
        let got = Recipe::Turned(turned).compute(&[one.to_vec(), other.to_vec()]).unwrap();
        assert_eq!(got[..12], [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11]);
        assert_eq!(got[12..16], [12, 13, 18, 19]);
        assert_eq!(got[24..], bytes[24..]);
    }
}
