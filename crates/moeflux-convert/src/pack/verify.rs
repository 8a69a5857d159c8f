//! Whether a container's files are still what was packed.

use std::path::Path;

use moeflux_core::checkpoint::{Container, PackedFile};
use moeflux_model::open_checkpoint;

use super::{OnPackProgress, PackProgress, PackStage};
use crate::error::PackError;
use crate::files::checksum_of;

/// Reads every file of the container at `path` and compares its checksum;
/// returns how many bytes were read.
///
/// # Errors
/// Where it is no container, or a file is missing or has changed; the first
/// is named.
pub fn verify(path: &Path, progress: &mut OnPackProgress<'_>) -> Result<u64, PackError> {
    let checkpoint = open_checkpoint(path)?;
    let Some(container) = checkpoint.container() else {
        let what = "only packed containers have checksums; `moeflux pack` makes one";
        return Err(PackError::damaged(path, what));
    };
    verify_files(checkpoint.root(), container, progress)
}

fn verify_files(
    root: &Path,
    container: &Container,
    progress: &mut OnPackProgress<'_>,
) -> Result<u64, PackError> {
    let total = container.files.iter().map(|file| file.bytes).sum();
    let mut done = 0;
    for PackedFile { path: file, bytes, xxh3_128 } in &container.files {
        let path = root.join(file);
        let advance = &mut |n| {
            done += n;
            progress(PackProgress { stage: PackStage::Verify, file, done, total });
        };
        let (have, checksum) = checksum_of(&path, advance)?;
        if have != *bytes || !checksum.eq_ignore_ascii_case(xxh3_128) {
            let what = format!("its checksum is {checksum}, {xxh3_128} was packed; copy it again");
            return Err(PackError::damaged(&path, what));
        }
    }
    Ok(done)
}
