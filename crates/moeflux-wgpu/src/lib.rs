//! Every op in WGSL, on any GPU that wgpu supports.
//!
//! [`Wgpu`] records kernels in the order of its ops (`commands`) and waits for the device where an
//! op reads back. Weights, caches and activations are buffers of the device (`weights`, `caches`,
//! `state`). Experts are copied into slots (`experts`) and stay resident while there is memory:
//! threads write them into mapped buffers, or a kernel gathers them from the host's memory
//! (`device::imports`). Kernels are WGSL files in `shaders`, in folders named as the ops that
//! dispatch them (`ops`); `kernels` declares their constants and compiles them. How matrix products
//! are laid out is measured on each device and stored in a file (`tuning`).
//!
//! On one device the bits of a result depend on the model, the tokens and the precision of
//! activations only: neither on layouts of products nor on where experts are. Devices differ from
//! each other in the last few bits, also by whether products with many rows run on cooperative
//! matrices ([`Tiles`]), which a self-test decides when a device is opened (`coop_matrix`). Another
//! compares a few ops with the processor's, for those who choose a device by themselves (`self_test`).

#![deny(unsafe_code)]

mod caches;
mod commands;
mod coop_matrix;
mod device;
mod dispatch;
mod experts;
mod kernels;
mod ops;
mod self_test;
mod state;
#[cfg(test)]
mod tests;
mod tuning;
mod weights;
mod words;

pub use device::adapter::{AdapterFacts, adapters};
pub use device::context::{Context, OpenError};
pub use ops::moe::in_place::reads_in_place;
pub use ops::moe::route::MAX_EXPERTS;
pub use self_test::SelfTestError;
pub use state::backend::Wgpu;
pub use tuning::file::measurement_key;
pub use tuning::layout::{Form, Layout, Tiles};
pub use tuning::measure::BandwidthProbe;
pub use tuning::table::ProductShape;
pub use tuning::trial::{ProductProbe, ProductTime};
pub use tuning::tune::{TuneOptions, Tuning, n_tuned};
