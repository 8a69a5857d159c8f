//! Identifies a checkpoint by its content, whatever its directory is called.

use super::FileReader;
use super::FormatError;
use super::checksum::Checksum;
use super::container::SourceIdentity;
use super::opened::Checkpoint;

use crate::{ExpertBank, Extent};

/// Bytes of each sample of a file.
const SAMPLE_BYTES: u64 = 64 << 10;

impl SourceIdentity {
    /// Reads the data that identifies a checkpoint: its config; the names, types, shapes and
    /// positions of its tensors; the names, lengths and three samples of 64 KiB of every file of
    /// `bank`.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn read(checkpoint: &Checkpoint, bank: &ExpertBank) -> Result<SourceIdentity, FormatError> {
        let mut checksum = Checksum::default();
        checksum.update(checkpoint.config().value().to_string().as_bytes());
        for (name, tensor) in checkpoint.tensors() {
            let (dtype, shape) = (tensor.dtype.name(), &tensor.shape);
            let text = format!("{name} {dtype} {shape:?} {:?}", tensor.extent);
            checksum.update(text.as_bytes());
        }
        let reader = FileReader::new(&bank.files);
        let mut files = Vec::new();
        for (file_idx, file) in bank.stored_files() {
            let name = file.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            files.push((name, file.len));
            let last = file.len.saturating_sub(SAMPLE_BYTES);
            for offset in [0, last / 2, last] {
                let len = SAMPLE_BYTES.min(file.len) as usize;
                checksum.update(&reader.read(Extent { file: file_idx, offset, len })?);
            }
        }
        Ok(SourceIdentity { files, fingerprint: checksum.hex() })
    }
}
