//! A tensor in a file: what it is called, what it holds, where it lies.

use crate::FileIdx;
use crate::quant::Float;

/// A run of bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The file, of the checkpoint's or the bank's list.
    pub file: FileIdx,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: usize,
}

/// What a tensor's elements are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// Floats that this program reads.
    Float(Float),
    /// Words of packed integers.
    U32,
    /// Bytes: packed floats and scales.
    U8,
    /// Floats of eight bits.
    F8E4M3,
    /// Anything else, by its name in the file.
    Other(String),
}

/// A tensor of a checkpoint.
///
/// Invariant, checked where tensors are read from headers: the extent lies
/// inside its file and is as long as dtype and shape say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// What the file calls it.
    pub stored_name: String,
    /// What its elements are.
    pub dtype: Dtype,
    /// Its dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Where it lies.
    pub extent: Extent,
}

impl Extent {
    /// A part of this run.
    pub(crate) fn slice(self, start: usize, len: usize) -> Extent {
        assert!(start <= self.len && len <= self.len - start, "slice of an extent");
        Extent { file: self.file, offset: self.offset + start as u64, len }
    }

    /// The run without its bytes: what formats without parameters have.
    pub(crate) fn empty(self) -> Extent {
        self.slice(0, 0)
    }
}

impl Dtype {
    /// The dtype of that name in safetensors headers.
    pub(crate) fn named(name: &str) -> Dtype {
        match name {
            "F32" => Dtype::Float(Float::F32),
            "F16" => Dtype::Float(Float::F16),
            "BF16" => Dtype::Float(Float::BF16),
            "U32" => Dtype::U32,
            "U8" => Dtype::U8,
            "F8_E4M3" => Dtype::F8E4M3,
            other => Dtype::Other(other.to_owned()),
        }
    }

    /// Bytes of an element, where it is known.
    pub fn bytes(&self) -> Option<usize> {
        match self {
            Dtype::Float(float) => Some(float.bytes()),
            Dtype::U32 => Some(4),
            Dtype::U8 | Dtype::F8E4M3 => Some(1),
            Dtype::Other(_) => None,
        }
    }

    /// Its name in safetensors headers.
    pub fn name(&self) -> &str {
        match self {
            Dtype::Float(Float::F32) => "F32",
            Dtype::Float(Float::F16) => "F16",
            Dtype::Float(Float::BF16) => "BF16",
            Dtype::U32 => "U32",
            Dtype::U8 => "U8",
            Dtype::F8E4M3 => "F8_E4M3",
            Dtype::Other(name) => name,
        }
    }
}
