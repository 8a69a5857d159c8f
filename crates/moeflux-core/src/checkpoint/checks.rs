//! Refuses weights that are damaged, by the name of their tensor.

use super::checksum::part_checksum;
use super::{Checkpoint, Extent, FormatError, Tensor};
use crate::SourceFile;
use crate::quant::Encoding;

impl Checkpoint {
    /// Checks that the elements in `bytes`, which were read from `extent` of one of `files`, are
    /// finite numbers. `files` are the checkpoint's, or those of a bank that begins with them.
    ///
    /// # Errors
    /// [`FormatError::NotFinite`] names the first that is not.
    pub fn check_finite(
        &self,
        files: &[SourceFile],
        encoding: Encoding,
        extent: Extent,
        bytes: &[u8],
    ) -> Result<(), FormatError> {
        let Some((found, value)) = encoding.first_not_finite(bytes) else { return Ok(()) };
        let path = files[extent.file.0 as usize].path.clone();
        let holds = |tensor: &&Tensor| {
            let Extent { file, offset, len } = tensor.extent;
            file == extent.file && (offset..offset + len as u64).contains(&extent.offset)
        };
        let (name, first) = match self.tensors.values().find(holds) {
            Some(tensor) => {
                let n_bytes = tensor.dtype.bytes().unwrap_or(1) as u64;
                let before = (extent.offset - tensor.extent.offset) / n_bytes;
                (tensor.stored_name.clone(), before as usize)
            }
            None => (format!("at byte {}", extent.offset), 0),
        };
        Err(FormatError::NotFinite { path, name, element: first + found, value })
    }

    /// Checks the bytes of a whole tensor, which were read from `extent`, where the container has
    /// its checksum; passes any others.
    ///
    /// # Errors
    /// [`FormatError::Damaged`].
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
