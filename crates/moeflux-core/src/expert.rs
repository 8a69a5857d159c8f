//! A routed expert in memory, and where its matrices are stored in its record.

use std::sync::Arc;

use crate::quant::{MatrixFormat, MatrixView};
use crate::{ExpertKey, HostBuf, MappedFile};

/// A range of bytes inside one extent of an expert's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartSpan {
    /// Index of the extent in the record.
    pub extent: usize,
    /// Offset of the first byte from the start of the extent.
    pub offset: usize,
    /// Number of bytes.
    pub len: usize,
}

/// Where one matrix of an expert is stored, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixLayout {
    /// Rows: outputs.
    pub rows: usize,
    /// Columns: inputs.
    pub cols: usize,
    /// How the elements are stored.
    pub format: MatrixFormat,
    /// The elements.
    pub weight: PartSpan,
    /// The scales; empty for formats without scales.
    pub scales: PartSpan,
    /// One bias per group and row; empty for formats without biases.
    pub biases: PartSpan,
}

/// How the gate and up projections of an expert are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateUp {
    /// Each is a matrix.
    Split {
        /// `(moe_intermediate_size, hidden_size)`.
        gate: MatrixLayout,
        /// `(moe_intermediate_size, hidden_size)`.
        up: MatrixLayout,
    },
    /// In one matrix `(2 * moe_intermediate_size, hidden_size)`: its rows alternate between gate
    /// and up.
    Alternating(MatrixLayout),
    /// In one matrix `(2 * moe_intermediate_size, hidden_size)`: the rows of gate, then those of
    /// up. For formats in which some rows of a matrix are not a run of bytes.
    Joined(MatrixLayout),
}

/// The layout of the expert records of one layer: for families, which compute with the experts, and
/// for the store, which reads them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpertLayout {
    /// Bytes of each extent, in the order in which they are read.
    pub extents: Vec<usize>,
    /// The gate and up projections.
    pub gate_up: GateUp,
    /// The down projection, `(hidden_size, moe_intermediate_size)`.
    pub down: MatrixLayout,
}

impl GateUp {
    /// The fused matrix, or gate and up, in this order.
    pub fn matrices(&self) -> impl Iterator<Item = &MatrixLayout> {
        let (first, second) = match self {
            GateUp::Split { gate, up } => (gate, Some(up)),
            GateUp::Alternating(both) | GateUp::Joined(both) => (both, None),
        };
        [first].into_iter().chain(second)
    }
}

impl ExpertLayout {
    /// Bytes of one record: the sum of its extents.
    pub fn record_bytes(&self) -> usize {
        self.extents.iter().sum()
    }

    /// The model's `moe_intermediate_size`.
    pub fn intermediate(&self) -> usize {
        self.down.cols
    }

    /// All matrices: gate and up, or the fused one, then down.
    pub fn matrices(&self) -> impl Iterator<Item = &MatrixLayout> {
        self.gate_up.matrices().chain([&self.down])
    }
}

/// Where the extents of one record are in memory.
#[derive(Debug)]
pub enum ExpertMemory {
    /// In one buffer: extent `i` begins at `starts[i]`. Bytes between extents are unused; reads of
    /// whole blocks may have filled them.
    Owned {
        /// The slot.
        buf: HostBuf,
        /// Offset of each extent in `buf`.
        starts: Vec<usize>,
    },
    /// In mapped files: the file and the offset of each extent.
    Mapped(Vec<(Arc<MappedFile>, usize)>),
}

/// The record of one routed expert.
///
/// It is shared as `Arc<Expert>`. While a clone exists, the slot is not reused, so a backend keeps
/// a clone until its device has finished reading.
#[derive(Debug)]
pub struct Expert {
    /// Which expert this is.
    pub key: ExpertKey,
    /// The layout of the record.
    pub layout: Arc<ExpertLayout>,
    /// The record's bytes.
    pub memory: ExpertMemory,
}

impl Expert {
    /// The bytes of a range of the record.
    pub fn part(&self, span: PartSpan) -> &[u8] {
        if span.len == 0 {
            return &[];
        }
        let (bytes, start): (&[u8], usize) = match &self.memory {
            ExpertMemory::Owned { buf, starts } => (buf, starts[span.extent]),
            ExpertMemory::Mapped(extents) => {
                let (map, start) = &extents[span.extent];
                (map, *start)
            }
        };
        &bytes[start + span.offset..start + span.offset + span.len]
    }

    /// One of the record's matrices.
    pub fn matrix(&self, layout: &MatrixLayout) -> MatrixView<'_> {
        MatrixView {
            rows: layout.rows,
            cols: layout.cols,
            format: layout.format,
            weight: self.part(layout.weight),
            scales: self.part(layout.scales),
            biases: self.part(layout.biases),
        }
    }
}
