//! A routed expert in memory, and where its matrices lie in it.

use std::sync::Arc;

use crate::quant::{MatrixFormat, MatrixView};
use crate::{ExpertKey, HostBuf, MappedFile};

/// A run of bytes inside one extent of an expert's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartSpan {
    /// Which extent of the record.
    pub extent: usize,
    /// First byte, counted from the start of the extent.
    pub offset: usize,
    /// Number of bytes.
    pub len: usize,
}

/// Where one matrix of an expert lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixLayout {
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// How the elements are stored.
    pub format: MatrixFormat,
    /// The elements.
    pub weight: PartSpan,
    /// The scales; empty for formats without.
    pub scales: PartSpan,
    /// One bias a group and row; empty for formats without.
    pub biases: PartSpan,
}

/// How the rows of an expert's first two matrices lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateUp {
    /// Each by itself.
    Split {
        /// `(moe_intermediate_size, hidden_size)`.
        gate: MatrixLayout,
        /// `(moe_intermediate_size, hidden_size)`.
        up: MatrixLayout,
    },
    /// In one matrix `(2 * moe_intermediate_size, hidden_size)`: a row of gate,
    /// its row of up, and so on.
    Alternating(MatrixLayout),
}

/// The record of every expert of one layer: what a family computes with and
/// what the store reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpertLayout {
    /// Bytes of each extent, in the order in which they are read.
    pub extents: Vec<usize>,
    /// Gate and up.
    pub gate_up: GateUp,
    /// `(hidden_size, moe_intermediate_size)`.
    pub down: MatrixLayout,
}

impl GateUp {
    /// The one matrix, or both: gate, then up.
    pub fn matrices(&self) -> impl Iterator<Item = &MatrixLayout> {
        let (first, second) = match self {
            GateUp::Split { gate, up } => (gate, Some(up)),
            GateUp::Alternating(both) => (both, None),
        };
        [first].into_iter().chain(second)
    }
}

impl ExpertLayout {
    /// Bytes of one record, all extents together.
    pub fn record_bytes(&self) -> usize {
        self.extents.iter().sum()
    }

    /// `moe_intermediate_size`.
    pub fn intermediate(&self) -> usize {
        self.down.cols
    }

    /// All matrices: gate and up, then down.
    pub fn matrices(&self) -> impl Iterator<Item = &MatrixLayout> {
        self.gate_up.matrices().chain([&self.down])
    }
}

/// Where the extents of one record are.
#[derive(Debug)]
pub enum ExpertMemory {
    /// In one buffer, extent `i` beginning at `starts[i]`; bytes between the
    /// extents are slack that their reads brought.
    Owned {
        /// The slot.
        buf: HostBuf,
        /// First byte of each extent in `buf`.
        starts: Vec<usize>,
    },
    /// In mapped files, extent `i` beginning at that byte of that file.
    Mapped(Vec<(Arc<MappedFile>, usize)>),
}

/// One routed expert's record.
///
/// Shared as `Arc<Expert>`: whoever holds a clone keeps the slot from being
/// reused, so a backend keeps one until the device has finished reading.
#[derive(Debug)]
pub struct Expert {
    /// Which expert this is.
    pub key: ExpertKey,
    /// How its record is divided.
    pub layout: Arc<ExpertLayout>,
    /// The record's bytes.
    pub memory: ExpertMemory,
}

impl Expert {
    /// The bytes of one part.
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
