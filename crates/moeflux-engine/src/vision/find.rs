//! The vision tower of a model, found when the model is opened.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use moeflux_core::OptionId;
use moeflux_core::checkpoint::{Checkpoint, FormatError};
use moeflux_image::Processor;
use moeflux_model::{LoadError, TowerFiles, TowerShape, open_checkpoint};
use moeflux_store::ExpertStore;

use super::Vision;
use super::processor::processor_of;
use super::reader::PictureReader;
use super::tower::{TowerPlace, max_rows};
use crate::device::Device;
use crate::error::EngineError;
use crate::options::{EngineOptions, precision};

/// Rows of a picture that memory is planned for, where only the model's processor bounds them.
const UNBOUNDED_TOKENS: usize = 4096;

/// The files of a tower, and how pictures become its patches.
pub(crate) struct FoundVision {
    files: TowerFiles,
    processor: Processor,
}

/// Finds a model's tower, unless options leave it out.
///
/// # Errors
/// Where its files are damaged.
pub(crate) fn find_vision(
    checkpoint: &Checkpoint,
    options: &EngineOptions,
) -> Result<Option<FoundVision>, EngineError> {
    let Some(files) = tower_files(checkpoint, options)? else { return Ok(None) };
    let processor = processor_of(checkpoint, &files)?;
    let processor = processor.with_max_tokens(options.vision.image_tokens);
    Ok(Some(FoundVision { files, processor }))
}

/// How the model at `source` takes pictures: headers are read and no weights; `None` where it takes none. Of the
/// options only those of the vision tower count.
///
/// # Errors
/// Where there is no model, or the files of its tower are damaged.
pub fn picture_reader(
    source: &Path,
    options: &EngineOptions,
) -> Result<Option<PictureReader>, EngineError> {
    let checkpoint = open_checkpoint(source).map_err(LoadError::from)?;
    let found = find_vision(&checkpoint, options)?;
    Ok(found.map(|found| PictureReader::new(found.processor)))
}

/// The files of a model's tower, unless options leave it out.
fn tower_files(
    checkpoint: &Checkpoint,
    options: &EngineOptions,
) -> Result<Option<TowerFiles>, EngineError> {
    if options.vision.is_off {
        return Ok(None);
    }
    let named = options.vision.mmproj.as_deref();
    if let Some(path) = named.filter(|path| !path.is_file()) {
        return Err(EngineError::Option {
            option: OptionId::Mmproj,
            value: path.display().to_string(),
            remedy: "there is no such file: name the GGUF file of the vision tower".to_owned(),
        });
    }
    match TowerFiles::of_model(checkpoint, named) {
        // Conversions that left a tower out keep some of its keys.
        Err(LoadError::Format(FormatError::ConfigMissing { .. })) if named.is_none() => Ok(None),
        found => Ok(found?),
    }
}

/// A model's vision tower, as its files describe it.
#[derive(Clone, Debug)]
pub struct TowerFacts {
    /// Its sizes.
    pub shape: TowerShape,
    /// The GGUF file that has it; `None` where the model's own files have it.
    pub mmproj: Option<PathBuf>,
    /// Tensors of it.
    pub n_tensors: usize,
    /// How pictures become patches; `None` where the model's file of that cannot be read.
    pub pictures: Option<PictureFacts>,
}

/// How a model takes pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PictureFacts {
    /// Pixels of a side of a patch.
    pub patch_size: usize,
    /// The fewest and the most tokens that the model's processor gives a picture, but for rounding.
    pub tokens: [usize; 2],
}

/// What the files of a model say of its vision tower.
///
/// # Errors
/// Where these are damaged.
pub(crate) fn tower_facts(
    checkpoint: &Checkpoint,
    options: &EngineOptions,
) -> Result<Option<TowerFacts>, EngineError> {
    let Some(files) = tower_files(checkpoint, options)? else { return Ok(None) };
    Ok(Some(TowerFacts {
        shape: files.shape(),
        mmproj: files.mmproj().map(|metadata| metadata.path().to_path_buf()),
        n_tensors: files.checkpoint().tensors().len(),
        pictures: processor_of(checkpoint, &files).ok().map(|processor| PictureFacts {
            patch_size: processor.parameters().patch_size,
            tokens: processor.tokens(),
        }),
    }))
}

impl FoundVision {
    /// Bytes of the tower on this device while it looks at a picture.
    pub(crate) fn bytes(&self, device: Device) -> u64 {
        let n_tokens = self.processor.max_tokens().map_or(UNBOUNDED_TOKENS, |most| most.get());
        self.files.bytes(max_rows(device), n_tokens)
    }

    /// The same for pictures of at most `most` tokens.
    #[must_use]
    pub(crate) fn of_at_most(self, most: Option<usize>) -> FoundVision {
        let most = most.map(|most| NonZeroUsize::new(most).unwrap_or(NonZeroUsize::MIN));
        let most = [most, self.processor.max_tokens()].into_iter().flatten().min();
        FoundVision { processor: self.processor.with_max_tokens(most), ..self }
    }

    /// The tower, to compute where the model does. `experts` are those whose cache gives it memory.
    pub(crate) fn open(
        self,
        options: &EngineOptions,
        n_threads: usize,
        experts: Option<Arc<ExpertStore>>,
    ) -> Vision {
        let place = TowerPlace {
            device: options.compute.device,
            n_threads,
            isa: options.compute.isa.clone(),
            inputs: precision(options.compute.activations),
            idle: options.vision.tower_idle,
            bytes: self.bytes(options.compute.device),
            experts,
        };
        Vision::new(self.files, self.processor, place)
    }
}

/// What a model's vision tower takes of the processor's memory. What is wrong with its files is said when
/// the model is opened.
pub(crate) fn tower_bytes(checkpoint: &Checkpoint, options: &EngineOptions) -> u64 {
    let is_there = options.compute.device == Device::Cpu;
    let found = is_there.then(|| find_vision(checkpoint, options).ok().flatten()).flatten();
    found.map_or(0, |found| found.bytes(Device::Cpu))
}
