//! The vision tower of a model, found when the model is opened.

use std::sync::Arc;

use moeflux_core::checkpoint::Checkpoint;
use moeflux_image::Processor;
use moeflux_model::TowerFiles;
use moeflux_store::ExpertStore;

use super::Vision;
use super::processor::processor_of;
use super::tower::{TowerPlace, rows_at_once};
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
    if options.vision.is_off {
        return Ok(None);
    }
    let Some(files) = TowerFiles::find(checkpoint)? else { return Ok(None) };
    let processor = processor_of(checkpoint, &files)?;
    let processor = processor.with_max_tokens(options.vision.image_tokens);
    Ok(Some(FoundVision { files, processor }))
}

impl FoundVision {
    /// Bytes of the tower while it looks at a picture.
    pub(crate) fn bytes(&self, options: &EngineOptions) -> u64 {
        let n_tokens = self.processor.max_tokens().map_or(UNBOUNDED_TOKENS, |most| most.get());
        self.files.bytes(rows_at_once(options.compute.device), n_tokens)
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
            bytes: self.bytes(options),
            experts,
        };
        Vision::new(self.files, self.processor, place)
    }
}
