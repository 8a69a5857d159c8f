//! A tensor in a file: its name, its type and shape, and where it is stored.

use crate::Extent;
use crate::quant::{BlockType, Float};

/// The type of a tensor's elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// Floats that this program reads.
    Float(Float),
    /// 32-bit words of packed integers.
    U32,
    /// Bytes of packed floats or scales.
    U8,
    /// E4M3 floats.
    F8E4M3,
    /// Powers of two in eight bits.
    F8E8M0,
    /// Signed bytes.
    I8,
    /// 32-bit words of published integers.
    I32,
    /// Signed 64-bit integers.
    I64,
    /// Blocks of ggml; shapes count columns.
    Ggml(BlockType),
    /// Any other type, by its name in the file.
    Other(String),
}

/// A tensor of a checkpoint.
///
/// Invariant, checked when headers are parsed: the extent is inside its file and has the length
/// that dtype and shape require.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// The name in the file.
    pub stored_name: String,
    /// The type of the elements.
    pub dtype: Dtype,
    /// The dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Where the tensor is stored.
    pub extent: Extent,
}

impl Dtype {
    /// The type with this name in safetensors headers.
    pub(crate) fn named(name: &str) -> Dtype {
        match name {
            "F32" => Dtype::Float(Float::F32),
            "F16" => Dtype::Float(Float::F16),
            "BF16" => Dtype::Float(Float::BF16),
            "U32" => Dtype::U32,
            "U8" => Dtype::U8,
            "F8_E4M3" => Dtype::F8E4M3,
            "F8_E8M0" => Dtype::F8E8M0,
            "I8" => Dtype::I8,
            "I32" => Dtype::I32,
            "I64" => Dtype::I64,
            other => Dtype::Other(other.to_owned()),
        }
    }

    /// Bytes of an element; `None` if unknown or shared with others.
    pub fn bytes(&self) -> Option<usize> {
        match self {
            Dtype::Float(float) => Some(float.bytes()),
            Dtype::I64 => Some(8),
            Dtype::U32 | Dtype::I32 => Some(4),
            Dtype::U8 | Dtype::I8 | Dtype::F8E4M3 | Dtype::F8E8M0 => Some(1),
            Dtype::Ggml(_) | Dtype::Other(_) => None,
        }
    }

    /// The name in safetensors headers.
    pub fn name(&self) -> &str {
        match self {
            Dtype::Float(Float::F32) => "F32",
            Dtype::Float(Float::F16) => "F16",
            Dtype::Float(Float::BF16) => "BF16",
            Dtype::U32 => "U32",
            Dtype::U8 => "U8",
            Dtype::F8E4M3 => "F8_E4M3",
            Dtype::F8E8M0 => "F8_E8M0",
            Dtype::I8 => "I8",
            Dtype::I32 => "I32",
            Dtype::I64 => "I64",
            Dtype::Ggml(block_type) => block_type.name(),
            Dtype::Other(name) => name,
        }
    }
}
