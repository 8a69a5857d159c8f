//! Checkpoints into other checkpoints: packing into the container, calibration for quantisation,
//! random checkpoints of real shapes, verification against checksums.
//!
//! Every function blocks, reads a checkpoint from a directory and reports its progress to a
//! callback on the calling thread. Packing and synthesis write under a working name, and give a
//! file its name once it is complete and on the drive.

#![forbid(unsafe_code)]

mod calibrate;
mod checkpoints;
mod described;
mod error;
mod files;
mod importance;
pub mod pack;
pub mod synth;
pub mod verify;

pub use calibrate::{Calibration, calibrate};
pub use checkpoints::{pack_checkpoint, synthesise};
pub use error::ConvertError;
pub use importance::Importance;
