//! The processor of a model's pictures.

use moeflux_core::checkpoint::Checkpoint;
use moeflux_image::Processor;
use moeflux_model::TowerFiles;

use crate::error::EngineError;

/// The processor that a model was published with.
pub(super) fn processor_of(model: &Checkpoint, _: &TowerFiles) -> Result<Processor, EngineError> {
    let json = std::fs::read(model.root().join("preprocessor_config.json")).expect("TEMPORARY");
    Ok(Processor::from_json(&serde_json::from_slice(&json).expect("TEMPORARY")).expect("TEMPORARY"))
}
