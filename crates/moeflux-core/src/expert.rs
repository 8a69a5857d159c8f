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

/// One thing for each matrix of an expert: of two, up and down, or of three, with a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertParts<T> {
    /// Absent of experts without a gate.
    pub gate: Option<T>,
    /// Of the up projection.
    pub up: T,
    /// Of the down projection.
    pub down: T,
}

/// A part of an expert, with the shape of its matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShapedPart<T> {
    /// The part.
    pub part: T,
    /// Rows: outputs.
    pub rows: usize,
    /// Columns: inputs.
    pub cols: usize,
}

impl<T> ExpertParts<T> {
    /// Of experts with a gate: gate, up and down.
    pub fn three([gate, up, down]: [T; 3]) -> ExpertParts<T> {
        ExpertParts { gate: Some(gate), up, down }
    }

    /// The result of a function of each part: of the gate first, then of up and of down.
    pub fn map<U>(self, mut of: impl FnMut(T) -> U) -> ExpertParts<U> {
        ExpertParts { gate: self.gate.map(&mut of), up: of(self.up), down: of(self.down) }
    }

    /// The results of a function of each part, or the first error.
    ///
    /// # Errors
    /// Those of the function.
    pub fn try_map<U, E>(self, mut of: impl FnMut(T) -> Result<U, E>) -> Result<ExpertParts<U>, E> {
        let gate = self.gate.map(&mut of).transpose()?;
        Ok(ExpertParts { gate, up: of(self.up)?, down: of(self.down)? })
    }

    /// Each with the shape that its matrix has in a model of these columns.
    pub fn shaped(self, hidden: usize, intermediate: usize) -> ExpertParts<ShapedPart<T>> {
        let first = |part| ShapedPart { part, rows: intermediate, cols: hidden };
        ExpertParts {
            gate: self.gate.map(first),
            up: first(self.up),
            down: ShapedPart { part: self.down, rows: hidden, cols: intermediate },
        }
    }
}

impl<T> IntoIterator for ExpertParts<T> {
    type Item = T;
    type IntoIter = std::iter::Chain<std::option::IntoIter<T>, std::array::IntoIter<T, 2>>;

    /// The gate's where there is one, then those of up and of down.
    fn into_iter(self) -> Self::IntoIter {
        self.gate.into_iter().chain([self.up, self.down])
    }
}

/// How the projections of an expert's input are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateUp {
    /// There is no gate.
    Up(MatrixLayout),
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
    /// The projections of the input.
    pub gate_up: GateUp,
    /// The down projection, `(hidden_size, moe_intermediate_size)`.
    pub down: MatrixLayout,
}

impl GateUp {
    /// The one matrix, or gate and up, in this order.
    pub fn matrices(&self) -> impl Iterator<Item = &MatrixLayout> {
        let (first, second) = match self {
            GateUp::Split { gate, up } => (gate, Some(up)),
            GateUp::Up(one) | GateUp::Alternating(one) | GateUp::Joined(one) => (one, None),
        };
        [first].into_iter().chain(second)
    }
}

impl ExpertLayout {
    /// The layout of records with a matrix for each part.
    pub fn of_parts(extents: Vec<usize>, parts: ExpertParts<MatrixLayout>) -> ExpertLayout {
        let ExpertParts { gate, up, down } = parts;
        let gate_up = gate.map_or(GateUp::Up(up), |gate| GateUp::Split { gate, up });
        ExpertLayout { extents, gate_up, down }
    }

    /// Bytes of one record: the sum of its extents.
    pub fn record_bytes(&self) -> usize {
        self.extents.iter().sum()
    }

    /// The model's `moe_intermediate_size`.
    pub fn intermediate(&self) -> usize {
        self.down.cols
    }

    /// Columns of the products with the input: gate's and up's, or up's alone.
    pub fn first_cols(&self) -> usize {
        self.gate_up.matrices().map(|matrix| matrix.rows).sum()
    }

    /// All matrices: gate and up, or the one in their place, then down.
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
