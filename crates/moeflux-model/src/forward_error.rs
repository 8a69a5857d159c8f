//! Why a forward pass ended early.

use moeflux_backend::DeviceError;
use moeflux_store::StoreError;

/// Why a forward pass ended early.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// An expert cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}
