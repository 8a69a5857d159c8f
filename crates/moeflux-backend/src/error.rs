//! Errors of devices.

/// A device failed. Devices fail only where they exchange data with the host.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// An allocation failed.
    #[error("the device is out of memory: {} were asked for", moeflux_core::show_bytes(*bytes))]
    OutOfMemory {
        /// Bytes of the allocation.
        bytes: u64,
    },
    /// The device stopped working and does not come back.
    #[error("the device was lost: {reason}")]
    Lost {
        /// The driver's message.
        reason: String,
    },
}
