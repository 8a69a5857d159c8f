//! Experts on the device: the slots they are in (`slots`), layers that are resident as a whole or
//! in part (`resident_layer`, `layer_cache`), how an expert is stored there (`packing`), and its
//! way from the host: gathered by a kernel (`gather`), or written by threads (`writers`) into
//! mapped buffers (`staging`).

pub(crate) mod gather;
pub(crate) mod layer_cache;
pub(crate) mod packing;
pub(crate) mod resident_layer;
pub(crate) mod slots;
pub(crate) mod staging;
pub(crate) mod writers;
