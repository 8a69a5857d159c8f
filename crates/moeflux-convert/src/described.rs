//! Vision towers that configs describe.

use moeflux_core::checkpoint::{Checkpoint, FormatError};
use moeflux_model::{LoadError, TowerFiles};

/// A model's vision tower; `None` too where the config says too little of it, as in conversions that left
/// it out.
///
/// # Errors
/// Where the tower's files are not what they should be, or several are as good.
pub(crate) fn described_tower(model: &Checkpoint) -> Result<Option<TowerFiles>, LoadError> {
    match TowerFiles::of_model(model, None) {
        Err(LoadError::Format(FormatError::ConfigMissing { .. })) => Ok(None),
        found => found,
    }
}
