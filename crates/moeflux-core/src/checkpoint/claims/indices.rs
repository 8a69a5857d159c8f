//! Tables of whole numbers that stay in memory, such as the experts of each token.

use super::claimed::Claimed;
use crate::Extent;
use crate::checkpoint::{Checkpoint, Dtype, FormatError};
use crate::manifest::IndicesDecl;

/// Where a table of whole numbers is stored, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndicesSource {
    /// Canonical tensor name.
    pub name: String,
    /// The bytes of the numbers.
    pub extent: Extent,
    /// The type of the numbers: [`Dtype::I32`] or [`Dtype::I64`].
    pub dtype: Dtype,
    /// Rows, and numbers of a row.
    pub shape: [usize; 2],
    /// What every number is below.
    pub below: u32,
}

impl IndicesSource {
    /// Reads the numbers, row by row.
    ///
    /// # Errors
    /// As [`IndicesSource::decode`], or if the file cannot be read.
    pub fn read(&self, checkpoint: &Checkpoint) -> Result<Vec<u32>, FormatError> {
        let bytes = checkpoint.reader().read(self.extent)?;
        self.decode(&bytes).map_err(|what| checkpoint.refuse_tensor(&self.name, &what))
    }

    /// The numbers of bytes that were read from the table, row by row. The error names the first that it
    /// cannot have; [`Checkpoint::refuse_tensor`] names the tensor.
    ///
    /// # Errors
    /// If a number is negative, or not below [`IndicesSource::below`].
    pub fn decode(&self, bytes: &[u8]) -> Result<Vec<u32>, String> {
        let number = |(entry, stored): (usize, i64)| {
            let number = u32::try_from(stored).ok().filter(|number| *number < self.below);
            number.ok_or_else(|| {
                let [row, col] = [entry / self.shape[1], entry % self.shape[1]];
                let last = self.below.saturating_sub(1);
                format!("entry {col} of row {row} is {stored}; it must be from 0 to {last}")
            })
        };
        if self.dtype == Dtype::I32 {
            let all = bytes.as_chunks::<4>().0.iter();
            all.map(|bytes| i32::from_le_bytes(*bytes).into()).enumerate().map(number).collect()
        } else {
            let all = bytes.as_chunks::<8>().0.iter();
            all.map(|bytes| i64::from_le_bytes(*bytes)).enumerate().map(number).collect()
        }
    }
}

/// Claims a table of whole numbers; see [`Claims::indices`](super::Claims::indices).
pub(super) fn indices(
    claimed: &mut Claimed<'_>,
    decl: &IndicesDecl,
) -> Result<IndicesSource, FormatError> {
    let tensor = claimed.claim(&decl.name)?;
    if !matches!(tensor.dtype, Dtype::I32 | Dtype::I64) {
        return Err(claimed.unsupported_dtype(tensor));
    }
    claimed.expect_shape(tensor, &[decl.rows], decl.cols)?;
    Ok(IndicesSource {
        name: decl.name.clone(),
        extent: tensor.extent,
        dtype: tensor.dtype.clone(),
        shape: [decl.rows, decl.cols],
        below: decl.below,
    })
}
