//! Vision towers that configs describe.

use moeflux_core::checkpoint::{Checkpoint, FormatError};
use moeflux_model::{LoadError, TowerFiles};

/// A model's vision tower; `None` too where it is not whole, as in conversions that left it out: the config
/// says too little of it, or a tensor is missing.
///
/// # Errors
/// Where the tower's files are not what they should be, or several are as good.
pub(crate) fn described_tower(model: &Checkpoint) -> Result<Option<TowerFiles>, LoadError> {
    match TowerFiles::of_model(model, None) {
        Err(LoadError::Format(
            FormatError::ConfigMissing { .. } | FormatError::TensorMissing { .. },
        )) => Ok(None),
        found => found,
    }
}
