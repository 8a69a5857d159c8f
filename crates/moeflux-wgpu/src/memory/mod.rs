//! Memory of the device, and the commands that fill it: weights, experts in slots, and what sequences
//! hold between steps.

pub(crate) mod caches;
pub(crate) mod experts;
pub(crate) mod weights;
