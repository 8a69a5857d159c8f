//! Experts on the device. `moeflux_residency` decides which are there; here is what that needs of
//! the GPU: slots (`slots`), and the tables of resident layers (`tables`).

pub(crate) mod slots;
pub(crate) mod tables;
