//! Whether a model's files are still what was written: compared with the checksums of packed
//! containers and of the Hub's cache, and looked through for what no intact model has.

mod container;
mod hub_cache;
pub(crate) mod run;
mod weights;

use std::path::{Path, PathBuf};

use moeflux_core::checkpoint::{CheckpointKind, Container};
use moeflux_model::{LoadError, open_checkpoint};

use crate::described::described_tower;
use crate::error::ConvertError;
use crate::verify::run::Run;

pub use self::run::{Damage, OnVerifyProgress, Verification, VerifyProgress};

/// Reads the files of the model at `path`, a directory or a file of one, and says what is wrong
/// with them.
///
/// # Errors
/// Where there is no model at all, or none of a known family.
pub fn verify(
    path: &Path,
    progress: &mut OnVerifyProgress<'_>,
) -> Result<Verification, ConvertError> {
    let root = directory_of(path);
    let mut run = Run::new(root.clone(), progress);
    let n_hashed = hub_cache::verify(&root, &mut run);
    let is_packed = root.join(Container::FILE).is_file();
    if is_packed {
        container::verify(&root, &mut run)?;
    }
    // Damaged files need not open; that they do not is no news then.
    let opened = match open_checkpoint(path) {
        Ok(checkpoint) => checkpoint,
        Err(_) if !run.found.damage.is_empty() => return Ok(run.found),
        Err(err) if n_hashed > 0 || is_packed => {
            run.damage(&root, None, err.to_string());
            return Ok(run.found);
        }
        Err(err) => return Err(LoadError::from(err).into()),
    };
    let weights =
        weights::verify(&opened, &mut run).and_then(|()| match described_tower(&opened)? {
            Some(tower) => weights::verify_tower(&tower, &mut run),
            None => Ok(()),
        });
    match weights {
        Ok(()) => {}
        Err(_) if !run.found.damage.is_empty() => return Ok(run.found),
        Err(err) => return Err(err),
    }
    if n_hashed == 0 && !is_packed {
        let format = match opened.kind() {
            CheckpointKind::Prepared => "prepared directories have",
            CheckpointKind::Gguf => "GGUF files have",
            _ => "safetensors have",
        };
        run.checked(format!(
            "nothing against checksums: {format} none, so changed numbers are not found"
        ));
    }
    Ok(run.found)
}

/// The directory of a model that is named by one of its files.
fn directory_of(path: &Path) -> PathBuf {
    if !path.is_file() {
        return path.to_path_buf();
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

#[cfg(test)]
mod tests;
