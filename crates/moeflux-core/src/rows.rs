//! Where the rows of tables are stored on the drive: tables too large for memory, of which every
//! token needs a few rows.

use crate::quant::{Encoding, Float, SmallFloat};
use crate::{Extent, FileIdx, SourceFile};

/// How an element of a row is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowEncoding {
    /// A float that is not quantised.
    Float(Float),
    /// A float of eight bits, E4M3.
    F8E4M3,
}

impl RowEncoding {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            RowEncoding::Float(float) => float.bytes(),
            RowEncoding::F8E4M3 => 1,
        }
    }

    /// What the bytes of rows encode.
    pub fn encoding(self) -> Encoding {
        match self {
            RowEncoding::Float(float) => Encoding::Float(float),
            RowEncoding::F8E4M3 => Encoding::E4M3,
        }
    }

    /// The value of element `idx` of `bytes`.
    fn read(self, bytes: &[u8], idx: usize) -> f32 {
        match self {
            RowEncoding::Float(float) => float.read(bytes, idx),
            RowEncoding::F8E4M3 => SmallFloat::E4M3.read(bytes, idx),
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
        self.cols * self.encoding.bytes()
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
        for (i, value) in out.iter_mut().enumerate() {
            *value = self.encoding.read(bytes, i) * self.scale;
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
