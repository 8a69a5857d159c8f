//! Checkpoints into other checkpoints: packing, and making up random ones.

use std::path::Path;

use moeflux_core::OptionId;
use moeflux_model::{Declared, LoadError, Variant, WithMtp, open_checkpoint};

use crate::described::described_tower;
use crate::error::ConvertError;
use crate::pack::{OnPackProgress, PackOptions, PackReport, pack};
use crate::synth::options::SynthOptions;
use crate::synth::{OnSynthProgress, SynthError, synth};

/// Packs the checkpoint at `source` into the directory `dst`.
///
/// # Errors
/// Where the source is damaged or of no known family, the destination holds
/// something else, or a file cannot be written or does not read back.
pub fn pack_checkpoint(
    source: &Path,
    dst: &Path,
    options: &PackOptions,
    progress: &mut OnPackProgress<'_>,
) -> Result<PackReport, ConvertError> {
    let checkpoint = open_checkpoint(source).map_err(LoadError::from)?;
    let declared = Declared::of(&checkpoint, Variant::default())?;
    let tower = described_tower(&checkpoint)?;
    Ok(pack(&checkpoint, &declared.manifest, tower.as_ref(), dst, options, progress)?)
}

/// Makes up a random checkpoint of a real shape; returns its bytes.
///
/// # Errors
/// Where shape or options do not exist, `out` holds something, or a file
/// cannot be written.
pub fn synthesise(
    shape: &str,
    out: &Path,
    options: &SynthOptions,
    progress: &mut OnSynthProgress<'_>,
) -> Result<u64, SynthError> {
    let mtp = if options.has_mtp { WithMtp::IfSupported } else { WithMtp::Never };
    let manifest = |config: &_| {
        let declared = Declared::of_config(config, mtp)?;
        if options.has_mtp && !declared.shape.has_mtp() {
            let family = declared.family.name;
            return Err(format!("{}: there is no MTP layer for {family}", OptionId::Mtp).into());
        }
        Ok(declared.manifest)
    };
    synth(shape, out, options, &manifest, progress)
}
