//! Refuses damaged weights, with the names of their tensors.

use super::checksum::part_checksum;
use super::{Checkpoint, Extent, FormatError, Tensor};
use crate::SourceFile;
use crate::quant::Encoding;

impl Checkpoint {
    /// Checks that the elements in `bytes`, which were read from `extent`, are finite numbers.
    /// `files` are those of the checkpoint, or those of a bank, which begin with them.
    ///
    /// # Errors
    /// [`FormatError::NotFinite`] with the first element that is not finite.
    pub fn check_finite(
        &self,
        files: &[SourceFile],
        encoding: Encoding,
        extent: Extent,
        bytes: &[u8],
    ) -> Result<(), FormatError> {
        let Some((found, value)) = encoding.first_not_finite(bytes) else { return Ok(()) };
        let path = match files.get(extent.file.0 as usize) {
            Some(file) => file.path.clone(),
            None => self.root.clone(),
        };
        let holds = |tensor: &&Tensor| {
            let Extent { file, offset, len } = tensor.extent;
            file == extent.file && (offset..offset + len as u64).contains(&extent.offset)
        };
        let (name, first) = match self.tensors.values().find(holds) {
            Some(tensor) => {
                let n_bytes = encoding.unit_bytes() as u64;
                let before = ((extent.offset - tensor.extent.offset) / n_bytes) as usize;
                (tensor.stored_name.clone(), before * encoding.unit_elements())
            }
            None => (format!("at byte {}", extent.offset), 0),
        };
        Err(FormatError::NotFinite { path, name, element: first + found, value })
    }

    /// Checks the bytes of a whole tensor, which were read from `extent`, against its checksum.
    /// Accepts tensors without a checksum.
    ///
    /// # Errors
    /// [`FormatError::Damaged`] if the checksum differs.
    pub fn check_tensor(&self, extent: Extent, bytes: &[u8]) -> Result<(), FormatError> {
        let Some(container) = &self.container else { return Ok(()) };
        let is_whole = |tensor: &&Tensor| tensor.extent == extent && extent.len > 0;
        let Some(tensor) = self.tensors.values().find(is_whole) else { return Ok(()) };
        let Some(want) = container.resident_checksum(&tensor.stored_name) else { return Ok(()) };
        if part_checksum(bytes) == want {
            return Ok(());
        }
        let (path, name) = (self.path_of(tensor).to_path_buf(), tensor.stored_name.clone());
        Err(FormatError::Damaged { path, name })
    }
}
