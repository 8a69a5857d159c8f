//! Experts on the device. `moeflux_residency` decides which are there; here is what that needs of
//! the GPU (`memory`): how an expert is stored in a slot (`packing`), the tables of resident layers
//! (`tables`), and the way of an expert from the host: gathered by a kernel (`gather`), or written by
//! threads into mapped buffers (`staging`).

pub(crate) mod gather;
pub(crate) mod memory;
pub(crate) mod packing;
pub(crate) mod staging;
pub(crate) mod tables;
