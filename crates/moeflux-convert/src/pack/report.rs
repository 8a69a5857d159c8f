//! What packing did, by the kind of tensor.

use std::collections::BTreeMap;

use moeflux_core::manifest::{MatrixDecl, Role};
use moeflux_core::quant::QuantError;
use serde::{Deserialize, Serialize};

/// What packing did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PackReport {
    /// By kind of tensor: `attention`, `embedding`, `experts`, `gates`,
    /// `head`, `mlp`, `shared experts`, `vectors`.
    pub kinds: BTreeMap<String, KindReport>,
    /// How many matrices stay as they are because groups do not divide their
    /// columns, by their columns.
    pub undivided: BTreeMap<usize, u64>,
    /// Files that an earlier run had finished.
    pub n_resumed: usize,
    /// Bytes of all files.
    pub n_bytes: u64,
}

/// What packing did to one kind of tensor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KindReport {
    /// How many there are; an expert has three.
    pub n_tensors: u64,
    /// Bytes in the source.
    pub bytes_in: u64,
    /// Bytes in the container, without padding.
    pub bytes_out: u64,
    /// Sum of the squares of the elements that were quantised.
    pub signal: f64,
    /// Sum of the squares of what rounding changed.
    pub noise: f64,
}

impl KindReport {
    /// Root mean square of what rounding changed over that of the elements;
    /// 0 where nothing was quantised.
    pub fn relative_rms(&self) -> f64 {
        QuantError { signal: self.signal, noise: self.noise }.relative_rms()
    }

    fn add(&mut self, other: &KindReport) {
        self.n_tensors += other.n_tensors;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
        self.signal += other.signal;
        self.noise += other.noise;
    }
}

/// Reports of the kinds in one file.
pub(super) type FileReport = BTreeMap<String, KindReport>;

impl PackReport {
    pub(super) fn add_file(&mut self, report: &FileReport) {
        for (kind, of_kind) in report {
            self.kinds.entry(kind.clone()).or_default().add(of_kind);
        }
    }
}

/// Counts one tensor.
pub(super) fn count(
    report: &mut FileReport,
    kind: &str,
    bytes_in: usize,
    bytes_out: usize,
    error: QuantError,
) {
    let one = KindReport {
        n_tensors: 1,
        bytes_in: bytes_in as u64,
        bytes_out: bytes_out as u64,
        signal: error.signal,
        noise: error.noise,
    };
    report.entry(kind.to_owned()).or_default().add(&one);
}

/// The kind of a resident matrix.
pub(super) fn kind_of(decl: &MatrixDecl) -> &'static str {
    match decl.role {
        Role::Embedding => "embedding",
        Role::Head => "head",
        Role::Gate => "gates",
        Role::Projection if decl.name.contains("_attn.") => "attention",
        Role::Projection if decl.name.contains(".shared_expert") => "shared experts",
        Role::Projection => "mlp",
    }
}
