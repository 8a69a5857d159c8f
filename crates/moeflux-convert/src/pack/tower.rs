//! What a container gets of a vision tower: its tensors as they are, or a copy of its GGUF file.

use std::io::Read;
use std::path::{Path, PathBuf};

use moeflux_core::checkpoint::{Container, FormatError};
use moeflux_core::files::open_regular;
use moeflux_core::quant::QuantError;
use moeflux_model::TowerFiles;

use super::plan::Plan;
use super::report::{FileReport, count};
use crate::error::PackError;
use crate::files::{CHUNK_BYTES, FileWriter};

/// What is packed of a tower.
pub(super) enum PackedTower<'a> {
    /// Its tensors, which are among those of the model's own files.
    Tensors(Box<Plan<'a>>),
    /// Its file, of this many bytes.
    File(PathBuf, u64),
}

impl<'a> PackedTower<'a> {
    pub(super) fn new(tower: &'a TowerFiles) -> Result<PackedTower<'a>, FormatError> {
        let Some(metadata) = tower.mmproj() else {
            return Ok(PackedTower::Tensors(Box::new(Plan::of_tower(tower)?)));
        };
        let n_bytes = tower.checkpoint().files().iter().map(|file| file.len).sum();
        Ok(PackedTower::File(metadata.path().to_path_buf(), n_bytes))
    }

    /// The file of the container and its length.
    pub(super) fn file(&self) -> (String, u64) {
        match self {
            PackedTower::Tensors(plan) => {
                (Container::TOWER.to_owned(), plan.files().map(|file| file.1).sum())
            }
            PackedTower::File(_, n_bytes) => (Container::MMPROJ.to_owned(), *n_bytes),
        }
    }
}

/// Copies a file.
pub(super) fn copy(
    from: &Path,
    writer: &mut FileWriter,
    advance: &mut dyn FnMut(u64),
) -> Result<FileReport, PackError> {
    let mut file = open_regular(from).map_err(|err| PackError::read(from, err))?;
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut n_bytes = 0;
    loop {
        let n = file.read(&mut buffer).map_err(|err| PackError::read(from, err))?;
        if n == 0 {
            break;
        }
        writer.write(&buffer[..n])?;
        advance(n as u64);
        n_bytes += n;
    }
    let mut report = FileReport::new();
    count(&mut report, "vision", n_bytes, n_bytes, QuantError::default());
    Ok(report)
}
