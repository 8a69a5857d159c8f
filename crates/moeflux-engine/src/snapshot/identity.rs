//! The identity of a model, independent of its directory.

use moeflux_core::ExpertBank;
use moeflux_core::checkpoint::{Checkpoint, Checksum, SourceIdentity};
use moeflux_model::LoadError;

use crate::error::EngineError;

/// XXH3-128 of all that determines a model's output: its family, its config,
/// names, types, shapes and places of its tensors, lengths and samples of its
/// files, and how many experts a token gets: one for each of `top_k`.
pub(crate) fn identities<const N: usize>(
    checkpoint: &Checkpoint,
    family: &str,
    bank: &ExpertBank,
    top_k: [usize; N],
) -> Result<[String; N], EngineError> {
    // A layer whose file may be missing says other things than one that has it.
    let mut present = bank.clone();
    present.files.retain(|file| file.path.exists());
    let source = SourceIdentity::read(checkpoint, &present).map_err(LoadError::from)?;
    Ok(top_k.map(|top_k| {
        let mut checksum = Checksum::default();
        checksum.update(format!("{family} top {top_k} {}", source.fingerprint).as_bytes());
        for (name, len) in &source.files {
            checksum.update(format!(" {name:?} {len}").as_bytes());
        }
        checksum.hex()
    }))
}
