//! Where the rows of tables are stored on the drive: tables too large for memory, of which every
//! token needs a few rows.

use crate::quant::{BlockType, Encoding, Float, MatrixFormat, MatrixView, SmallFloat};
use crate::{Extent, FileIdx, SourceFile};

/// How an element of a row is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowEncoding {
    /// A float that is not quantised.
    Float(Float),
    /// A float of eight bits, E4M3.
    F8E4M3,
    /// An integer of ggml, in blocks that hold their scales.
    Ggml(BlockType),
}

impl RowEncoding {
    /// Bytes of a row of `cols` elements, which are whole blocks where there are blocks.
    pub fn row_bytes(self, cols: usize) -> usize {
        match self {
            RowEncoding::Float(float) => cols * float.bytes(),
            RowEncoding::F8E4M3 => cols,
            RowEncoding::Ggml(block_type) => MatrixFormat::Ggml(block_type).row_bytes(cols),
        }
    }

    /// What the bytes of rows encode.
    pub fn encoding(self) -> Encoding {
        match self {
            RowEncoding::Float(float) => Encoding::Float(float),
            RowEncoding::F8E4M3 => Encoding::E4M3,
            RowEncoding::Ggml(block_type) => Encoding::Ggml(block_type),
        }
    }

    /// The values of a row of as many elements.
    fn decode(self, bytes: &[u8], out: &mut [f32]) {
        match self {
            RowEncoding::Float(float) => {
                out.iter_mut().enumerate().for_each(|(i, value)| *value = float.read(bytes, i));
            }
            RowEncoding::F8E4M3 => {
                let read = |i| SmallFloat::E4M3.read(bytes, i);
                out.iter_mut().enumerate().for_each(|(i, value)| *value = read(i));
            }
            RowEncoding::Ggml(block_type) => {
                let (format, cols) = (MatrixFormat::Ggml(block_type), out.len());
                let (scales, biases) = (&[][..], &[][..]);
                MatrixView { rows: 1, cols, format, weight: bytes, scales, biases }
                    .decode_row(0, out);
            }
        }
    }
}

/// Consecutive rows of a table that are stored one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowPart {
    /// The file, an index of [`RowBank::files`].
    pub file: FileIdx,
    /// Offset of the first row, in bytes.
    pub offset: u64,
    /// Number of rows.
    pub rows: u64,
}

/// A table whose rows are read one by one.
///
/// Invariant, checked when it is built from a checkpoint: it has a column, and every part is inside
/// its file's `len`.
#[derive(Clone, Debug, PartialEq)]
pub struct RowTable {
    /// Canonical name of its module.
    pub name: String,
    /// Floats of a row.
    pub cols: usize,
    /// How an element is stored.
    pub encoding: RowEncoding,
    /// The factor of all elements.
    pub scale: f32,
    /// The parts, in the order of their rows.
    pub parts: Vec<RowPart>,
}

impl RowTable {
    /// Number of rows.
    pub fn rows(&self) -> u64 {
        self.parts.iter().map(|part| part.rows).sum()
    }

    /// Bytes of a stored row.
    pub fn row_bytes(&self) -> usize {
        self.encoding.row_bytes(self.cols)
    }

    /// Bytes of all rows.
    pub fn bytes(&self) -> u64 {
        self.rows() * self.row_bytes() as u64
    }

    /// The bytes of each part.
    pub fn extents(&self) -> impl Iterator<Item = Extent> + use<'_> {
        self.parts.iter().map(|part| {
            let rows = usize::try_from(part.rows).expect("tensors have sizes of memory");
            Extent { file: part.file, offset: part.offset, len: rows * self.row_bytes() }
        })
    }

    /// Decodes a stored row into `cols` floats.
    pub fn decode(&self, bytes: &[u8], out: &mut [f32]) {
        self.encoding.decode(bytes, out);
        for value in out {
            *value *= self.scale;
        }
    }
}

/// All such tables of a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RowBank {
    /// The files that [`RowPart::file`] counts.
    pub files: Vec<SourceFile>,
    /// In the order in which the family declares them.
    pub tables: Vec<RowTable>,
}

impl RowBank {
    /// Bytes of all tables.
    pub fn total_bytes(&self) -> u64 {
        self.tables.iter().map(RowTable::bytes).sum()
    }
}
