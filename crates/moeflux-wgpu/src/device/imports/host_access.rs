//! How experts come from the memory of the host.

/// How experts come from the host's memory to kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostAccess {
    /// Threads write them into mapped buffers, from which they are copied into slots.
    Written,
    /// A kernel brings them from the store's slots into those of the device.
    Fetched,
    /// Products read them in the store's slots.
    InPlace,
}
