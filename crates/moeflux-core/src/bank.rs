//! Where the records of experts are stored on the drive.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::FormatError;
use crate::{ExpertId, ExpertLayout};

/// The index of a file in [`ExpertBank::files`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileIdx(pub u32);

/// A range of bytes in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Index of the file in the list of the checkpoint or of the bank.
    pub file: FileIdx,
    /// Offset of the first byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: usize,
}

/// Computes the bytes of a file that exists in memory only, from those of other files.
pub trait DerivedBytes: fmt::Debug + Send + Sync {
    /// Fills `out` from byte `offset` on, and returns how many bytes there are before the end of the
    /// tensor that has this byte.
    ///
    /// # Errors
    /// If what it is computed from cannot be read, or contradicts itself.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize, FormatError>;

    /// What the tensor that has byte `offset` is computed from.
    fn inputs(&self, offset: u64) -> Vec<Extent>;
}

/// A file that records are read from.
#[derive(Clone, Debug)]
pub struct SourceFile {
    /// The path of the file.
    pub path: PathBuf,
    /// The length that it must have, in bytes.
    pub len: u64,
    /// What the bytes are computed by, if no file holds them; then `path` is that of the checkpoint.
    pub derived: Option<Arc<dyn DerivedBytes>>,
}

impl SourceFile {
    /// A file of that path, of `len` bytes.
    pub fn new(path: PathBuf, len: u64) -> SourceFile {
        SourceFile { path, len, derived: None }
    }

    /// The file of a checkpoint's derived tensors. It has no length of its own.
    pub fn derived(root: &Path, tensors: Arc<dyn DerivedBytes>) -> SourceFile {
        SourceFile { path: root.to_path_buf(), len: u64::MAX, derived: Some(tensors) }
    }
}

/// Files whose bytes are computed are the same only if one object computes them.
impl PartialEq for SourceFile {
    fn eq(&self, other: &SourceFile) -> bool {
        let is_same = match (&self.derived, &other.derived) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        };
        is_same && self.path == other.path && self.len == other.len
    }
}

impl Eq for SourceFile {}

impl Extent {
    /// The range of `len` bytes from `start` on in this extent.
    pub(crate) fn slice(self, start: usize, len: usize) -> Extent {
        assert!(start <= self.len && len <= self.len - start, "slice of an extent");
        Extent { file: self.file, offset: self.offset + start as u64, len }
    }

    /// The empty extent at this place, for formats without scales or biases.
    pub(crate) fn empty(self) -> Extent {
        self.slice(0, 0)
    }
}

/// Where one extent of a layer's experts is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExtentSource {
    /// Expert `e` begins at byte `base + e * stride`.
    Strided {
        /// The file.
        file: FileIdx,
        /// Offset of expert 0, in bytes.
        base: u64,
        /// Bytes from one expert to the next.
        stride: u64,
    },
    /// Expert `e` begins at the offset of entry `e`, in the file of that entry.
    Listed(Vec<(FileIdx, u64)>),
}

impl ExtentSource {
    /// File and offset in bytes of an expert's extent.
    pub fn locate(&self, expert: ExpertId) -> (FileIdx, u64) {
        match self {
            ExtentSource::Strided { file, base, stride } => {
                (*file, base + u64::from(expert.0) * stride)
            }
            ExtentSource::Listed(entries) => entries[expert.idx()],
        }
    }
}

/// The experts of one layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerBank {
    /// Number of experts.
    pub n_experts: usize,
    /// The layout of each record.
    pub layout: Arc<ExpertLayout>,
    /// One source for each of the layout's extents.
    pub sources: Vec<ExtentSource>,
    /// XXH3-64 of each expert's record; `None` if the checkpoint has none. Records with checksums
    /// are one extent.
    pub checksums: Option<Arc<[u64]>>,
}

/// All routed experts of a model.
///
/// Invariant, checked when a bank is built from a checkpoint: every extent of every expert is
/// inside its file's `len`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpertBank {
    /// The files that [`FileIdx`] counts.
    pub files: Vec<SourceFile>,
    /// Indexed by layer; `None` where a layer has no routed experts.
    pub layers: Vec<Option<LayerBank>>,
}

impl ExpertBank {
    /// Bytes of all records.
    pub fn total_bytes(&self) -> u64 {
        let layers = self.layers.iter().flatten();
        layers.map(|layer| layer.layout.record_bytes() as u64 * layer.n_experts as u64).sum()
    }

    /// Number of experts of all layers.
    pub fn n_experts(&self) -> usize {
        self.layers.iter().flatten().map(|layer| layer.n_experts).sum()
    }

    /// Whether all matrix parts of all records begin at offsets in their files that are multiples
    /// of `bytes`.
    pub fn is_aligned(&self, bytes: usize) -> bool {
        let is_multiple = |at: u64| at.is_multiple_of(bytes as u64);
        self.layers.iter().flatten().all(|layer| {
            let spans = layer
                .layout
                .matrices()
                .flat_map(|matrix| [matrix.weight, matrix.scales, matrix.biases]);
            let begins_aligned = |source: &ExtentSource| match source {
                ExtentSource::Strided { base, stride, .. } => {
                    is_multiple(*base) && (is_multiple(*stride) || layer.n_experts < 2)
                }
                ExtentSource::Listed(all) => all.iter().all(|entry| is_multiple(entry.1)),
            };
            spans.filter(|span| span.len > 0).all(|span| is_multiple(span.offset as u64))
                && layer.sources.iter().all(begins_aligned)
        })
    }

    /// The files on a drive: all but that of derived tensors.
    pub fn stored_files(&self) -> impl Iterator<Item = (FileIdx, &SourceFile)> {
        let files = (0..).map(FileIdx).zip(&self.files);
        files.filter(|(_, file)| file.derived.is_none())
    }

    /// Where the bytes of an extent are on a drive; of a derived one, those that it is computed
    /// from.
    pub fn stored_extents(&self, extent: Extent) -> Vec<Extent> {
        match &self.files[extent.file.0 as usize].derived {
            Some(derived) => derived.inputs(extent.offset),
            None => vec![extent],
        }
    }

    /// Whether parts of records are computed from others when they are read. Such files cannot be
    /// mapped.
    pub fn is_derived(&self) -> bool {
        let is_derived = |file: FileIdx| self.files[file.0 as usize].derived.is_some();
        self.layers.iter().flatten().flat_map(|layer| &layer.sources).any(|source| match source {
            ExtentSource::Strided { file, .. } => is_derived(*file),
            ExtentSource::Listed(entries) => {
                entries.first().is_some_and(|entry| is_derived(entry.0))
            }
        })
    }

    /// Bytes of the largest record.
    pub fn max_record_bytes(&self) -> usize {
        self.layers.iter().flatten().map(|layer| layer.layout.record_bytes()).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::{Float, MatrixFormat};
    use crate::{GateUp, MatrixLayout, PartSpan};

    /// A layer whose matrices begin at `offsets` of a record.
    fn layer(n_experts: usize, offsets: [usize; 3], source: ExtentSource) -> ExpertBank {
        let nothing = PartSpan { extent: 0, offset: 1, len: 0 };
        let [gate, up, down] = offsets.map(|offset| MatrixLayout {
            rows: 2,
            cols: 2,
            format: MatrixFormat::Dense(Float::F32),
            weight: PartSpan { extent: 0, offset, len: 16 },
            scales: nothing,
            biases: nothing,
        });
        let gate_up = GateUp::Split { gate, up };
        let layout = Arc::new(ExpertLayout { extents: vec![64], gate_up, down });
        let layer = LayerBank { n_experts, layout, sources: vec![source], checksums: None };
        ExpertBank { files: Vec::new(), layers: vec![None, Some(layer)] }
    }

    #[test]
    fn records_are_aligned_where_all_their_parts_are() {
        let strided = |base, stride| ExtentSource::Strided { file: FileIdx(0), base, stride };
        let listed = |all: &[u64]| {
            ExtentSource::Listed(all.iter().map(|offset| (FileIdx(0), *offset)).collect())
        };
        let parts = [0, 16, 48];
        assert!(layer(3, parts, strided(32, 4096)).is_aligned(16));
        assert!(layer(2, parts, listed(&[4096, 16])).is_aligned(16));
        assert!(layer(1, parts, strided(32, 100)).is_aligned(16));
        assert!(!layer(3, parts, strided(32, 100)).is_aligned(16));
        assert!(!layer(3, parts, strided(40, 4096)).is_aligned(16));
        assert!(!layer(2, parts, listed(&[4096, 24])).is_aligned(16));
        assert!(!layer(3, [0, 24, 48], strided(32, 4096)).is_aligned(16));
        assert!(layer(3, [0, 24, 48], strided(32, 4096)).is_aligned(8));
    }
}
