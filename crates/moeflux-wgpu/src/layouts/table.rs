//! Layouts that were measured, by product.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use moeflux_backend::ActivationPrecision;
use moeflux_core::quant::MatrixFormat;
use serde::{Deserialize, Serialize};

use crate::layouts::format::Decoder;
use crate::layouts::product::Layout;

/// Matrices of one shape that one kernel multiplies with one row of
/// activations, as decode does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProductShape {
    /// How the elements are stored.
    pub format: MatrixFormat,
    /// How the activations are treated.
    pub inputs: ActivationPrecision,
    /// Rows of a matrix.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// How many matrices.
    pub n: usize,
}

impl ProductShape {
    /// The rows of all matrices.
    pub(crate) fn matrix_rows(&self) -> MatrixRows {
        MatrixRows { n_rows: self.n * self.rows, n_matrices: self.n }
    }

    /// Bytes of weights, scales and biases that it reads.
    pub fn bytes(&self) -> u64 {
        self.n as u64 * self.format.matrix_bytes(self.rows, self.cols) as u64
    }
}

/// Up to this many matrices of a kernel are counted as few.
const FEW_MATRICES: usize = 4;

/// By this many powers of two products may differ in their rows and still have the layout of one
/// another.
const NEAR: u32 = 2;

/// What products have in common that have one layout. The class comes last, so that neighbours
/// are side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Key {
    /// As kernels know it: see `include/formats.wgsl`.
    pub(crate) format: [u32; 3],
    /// Digits of rounded activations; 0 where they are not.
    pub(crate) digits: u32,
    pub(crate) cols: u32,
    /// Whether many matrices are multiplied together: experts.
    pub(crate) has_many: bool,
    /// The power of two in the rows of all matrices.
    pub(crate) rows_class: u32,
}

/// The matrices that one kernel multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MatrixRows {
    /// Rows of all of them.
    pub(crate) n_rows: usize,
    pub(crate) n_matrices: usize,
}

impl Key {
    pub(crate) fn new(decoder: Decoder, n_limbs: u32, cols: usize, matrices: MatrixRows) -> Key {
        Key {
            format: decoder.apart(false).constants().words(),
            digits: n_limbs,
            cols: u32::try_from(cols).unwrap_or(u32::MAX),
            has_many: matrices.n_matrices > FEW_MATRICES,
            rows_class: matrices.n_rows.max(1).ilog2(),
        }
    }
}

/// What was measured of a product.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Choice {
    pub(crate) layout: Layout,
    /// Microseconds of it, and of what suits it where nothing is measured.
    pub(crate) us: f64,
    pub(crate) plain_us: f64,
}

/// Layouts that were measured on a device, which its backends share.
#[derive(Debug, Default)]
pub(crate) struct Tuned(RwLock<BTreeMap<Key, Choice>>);

impl Tuned {
    /// All of them.
    pub(crate) fn all(&self) -> RwLockReadGuard<'_, BTreeMap<Key, Choice>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds layouts, in place of those of the same products.
    pub(crate) fn learn(&self, more: impl IntoIterator<Item = (Key, Choice)>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).extend(more);
    }

    /// Adds layouts of products that have none yet.
    pub(crate) fn complete(&self, others: impl IntoIterator<Item = (Key, Choice)>) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        for (key, choice) in others {
            all.entry(key).or_insert(choice);
        }
    }

    /// The layout of the product most like this one, if one is near.
    pub(crate) fn get(&self, key: Key) -> Option<Layout> {
        let class = key.rows_class;
        let first = Key { rows_class: class.saturating_sub(NEAR), ..key };
        let all = self.all();
        let near = all.range(first..=Key { rows_class: class + NEAR, ..key });
        let nearest = near.min_by_key(|(near, _)| near.rows_class.abs_diff(class));
        nearest.map(|(_, choice)| choice.layout)
    }
}
