//! How a checkpoint is synthesised.

use super::mix::GgufMix;

/// How a checkpoint is to be made up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SynthOptions {
    /// Of the weights: 2, 3, 4, 5, 6 or 8, or 16 for BF16.
    pub bits: u8,
    /// Columns that share a scale and a bias: 32, 64 or 128.
    pub group_size: usize,
    /// Experts as MXFP4, as gpt-oss has them, whatever the bits of the rest.
    pub has_mxfp4_experts: bool,
    /// With multi-token prediction.
    pub has_mtp: bool,
    /// With the vision tower, in BF16, of shapes that have one.
    pub has_vision: bool,
    /// What is written.
    pub format: SynthFormat,
    /// The types of a GGUF file, in the place of bits and groups.
    pub mix: GgufMix,
    /// Splits a GGUF file into parts of up to this many bytes of tensors.
    pub part_bytes: Option<u64>,
    /// The same seed gives the same bytes.
    pub seed: u64,
    /// Replaces the shape's number of layers.
    pub n_layers: Option<usize>,
    /// Leaves holes in the files for the rows of tables, which read as zeros and take no room. Not for
    /// containers and GGUF.
    pub has_sparse_tables: bool,
    /// Replaces the shape's number of rows that each part of a table has at least.
    pub table_rows: Option<usize>,
    /// Leaves the weights out: the files have their sizes and take no room.
    /// For planning; not for containers.
    pub is_hollow: bool,
}

/// What is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SynthFormat {
    /// Sharded safetensors, as MLX writes them.
    Mlx,
    /// The packed container.
    Packed,
    /// GGUF, as llama.cpp writes it.
    Gguf,
    /// Sharded safetensors, as another tool than MLX writes them.
    Tool(ToolFormat),
}

/// A format of a tool other than MLX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolFormat {
    /// NVFP4 of ModelOpt.
    Nvfp4,
    /// `pack-quantized` of compressed-tensors: experts in four bits, groups of 32, as Kimi K2 has
    /// them.
    Int4,
    /// GPTQ in four bits, groups of 128.
    Gptq,
    /// AWQ in four bits, groups of 128.
    Awq,
    /// FP8 in blocks of 128 rows and columns.
    Fp8,
    /// The same with experts of MXFP4, and all scales as powers of two.
    Fp4,
}

impl Default for SynthOptions {
    fn default() -> SynthOptions {
        SynthOptions {
            bits: 4,
            group_size: 64,
            has_mxfp4_experts: false,
            has_mtp: false,
            has_vision: true,
            format: SynthFormat::Mlx,
            mix: GgufMix::default(),
            part_bytes: None,
            seed: 0,
            n_layers: None,
            has_sparse_tables: false,
            table_rows: None,
            is_hollow: false,
        }
    }
}
