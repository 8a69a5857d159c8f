//! The processor of a model's pictures: what its folder, or the GGUF file of its tower, says of it.

use std::path::{Path, PathBuf};

use moeflux_core::checkpoint::companions::PROCESSORS;
use moeflux_core::checkpoint::{Checkpoint, python_json};
use moeflux_core::files::read_bounded;
use moeflux_core::gguf::Metadata;
use moeflux_image::{ConfigError, Levels, Parameters, Processor, SizeRule, ValueOrder};
use moeflux_model::{LoadError, TowerFiles};
use serde_json::json;

use crate::error::EngineError;

/// Length in bytes of the longest such file; published ones have a few hundred.
const MAX_BYTES: u64 = 1 << 20;

/// The processor that a model was published with: by the file of its folder, or the keys of the GGUF file
/// of its tower. What these do not say, as in folders of weights alone, has the values of the first models of
/// the family.
///
/// # Errors
/// Where the file is damaged, or has the processor of another model.
pub(super) fn processor_of(
    model: &Checkpoint,
    tower: &TowerFiles,
) -> Result<Processor, EngineError> {
    let usual = usual(tower);
    if let Some(metadata) = tower.mmproj() {
        let parameters = of_mmproj(metadata, &usual, tower)?;
        return checked(metadata.path(), Processor::new(parameters), &usual, tower);
    }
    match PROCESSORS.iter().find_map(|name| model.companion(name)) {
        Some(path) => checked(&path, of_file(&path)?, &usual, tower),
        None => checked(model.root(), Processor::new(usual.clone()), &usual, tower),
    }
}

/// The values of a family, for patches of the tower's size.
fn usual(tower: &TowerFiles) -> Parameters {
    let file = json!({"image_processor_type": tower.processor_class()});
    let published = Processor::from_json(&file).expect("a class that is known, and no other key");
    let shape = tower.shape();
    let mut parameters = published.parameters().clone();
    parameters.patch_size = (shape.patch_len / 3 / parameters.n_frames).isqrt();
    parameters.merge_size = shape.merge;
    parameters
}

/// The processor of a file; the inner error is one of its values.
fn of_file(path: &Path) -> Result<Result<Processor, ConfigError>, EngineError> {
    let fail = |what: String| EngineError::Processor { path: path.to_path_buf(), what };
    let bytes = read_bounded(path, MAX_BYTES).map_err(|err| fail(err.to_string()))?;
    let json = python_json(&bytes).map_err(|err| fail(moeflux_core::json_problem(&err)))?;
    Ok(Processor::from_json(&json))
}

/// The processor by the keys of llama.cpp's files. Those of older converters lack the limits of sizes.
fn of_mmproj(
    metadata: &Metadata,
    usual: &Parameters,
    tower: &TowerFiles,
) -> Result<Parameters, EngineError> {
    let number =
        |key: &str| metadata.number(&format!("clip.vision.{key}")).map_err(LoadError::from);
    let mut parameters = usual.clone();
    parameters.patch_size = number("patch_size")?.unwrap_or(usual.patch_size);
    parameters.merge_size = tower.shape().merge;
    let (least, most) = (number("image_min_pixels")?, number("image_max_pixels")?);
    match &mut parameters.rule {
        SizeRule::Area { min_pixels, max_pixels, .. } => {
            *min_pixels = least.unwrap_or(*min_pixels);
            *max_pixels = most.unwrap_or(*max_pixels);
        }
        // The publisher's rule has no least size.
        SizeRule::PatchLimit { max_patches, .. } => {
            let pixels = parameters.patch_size.saturating_pow(2).max(1);
            *max_patches = most.map_or(*max_patches, |most| most / pixels);
        }
        SizeRule::TokenBudget { .. } | SizeRule::Canvas { .. } => {}
    }
    if let Levels::Standardised { mean, deviation } = &mut parameters.levels {
        *mean = channels(metadata, "image_mean")?.unwrap_or(*mean);
        *deviation = channels(metadata, "image_std")?.unwrap_or(*deviation);
    }
    Ok(parameters)
}

/// Three numbers, of red, green and blue.
fn channels(metadata: &Metadata, key: &str) -> Result<Option<[f32; 3]>, EngineError> {
    let key = format!("clip.vision.{key}");
    let Some(all) = metadata.floats(&key).map_err(LoadError::from)? else { return Ok(None) };
    let [red, green, blue] = *all else {
        let path = metadata.path().to_path_buf();
        let what = format!("{key} has {} numbers; write three, of red, green, blue", all.len());
        return Err(EngineError::Processor { path, what });
    };
    Ok(Some([red, green, blue].map(|number| number as f32)))
}

/// The processor, if it makes the patches of the tower.
fn checked(
    path: &Path,
    processor: Result<Processor, ConfigError>,
    usual: &Parameters,
    tower: &TowerFiles,
) -> Result<Processor, EngineError> {
    let fail = |what: String| EngineError::Processor { path: PathBuf::from(path), what };
    let processor = processor.map_err(|err| fail(err.to_string()))?;
    let (parameters, shape) = (processor.parameters(), tower.shape());
    let remedy = "fetch the files of the model again";
    let in_squares = parameters.order == ValueOrder::TokensThenChannels;
    if parameters.order != usual.order || in_squares != shape.in_squares {
        let class = tower.processor_class();
        return Err(fail(format!("a processor of another kind than {class}; {remedy}")));
    }
    let pairs = [
        ("numbers of a patch", processor.patch_values(), shape.patch_len),
        ("patches of a side of a token", parameters.merge_size, shape.merge),
    ];
    match pairs.iter().find(|(_, have, want)| have != want) {
        Some((what, have, want)) => {
            Err(fail(format!("{have} {what}, the vision tower takes {want}; {remedy}")))
        }
        None => Ok(processor),
    }
}

#[cfg(test)]
mod tests;
