//! Every op in WGSL, on any GPU that wgpu supports.
//!
//! Folders are floors: each uses those below it only.
//!
//! | floor | what it has |
//! |---|---|
//! | `backend` | the traits of a backend, each op handed to the file that computes it |
//! | `tuning`, `self_test` | layouts of products chosen by measurement; whether a device computes what it should |
//! | `ops` | the ops: which kernels they run, with which parameters and buffers |
//! | `state` | [`Wgpu`], which all ops change |
//! | `memory` | weights, experts in slots, caches of sequences: buffers, and the commands that fill them |
//! | `commands` | one stream of commands: recorded in the order of the ops, submitted, waited for where an op reads back; the ways of experts to the device |
//! | `device` | an opened GPU, its buffers and compiled kernels, the host's memory as it sees it |
//! | `layouts` | how weights and products are laid out, in numbers alone |
//! | `kernels` | WGSL files in `shaders`, in folders named as the ops that dispatch them, with their constants |
//!
//! Experts stay in slots while there is memory: threads write them into mapped buffers, or a kernel
//! gathers them from the host's memory.
//!
//! On one device the bits of a result depend on the model, the tokens and the precision of
//! activations only: neither on layouts of products nor on where experts are. Devices differ from
//! each other in the last few bits, also by whether products with many rows run on cooperative
//! matrices ([`Tiles`]), which a self-test decides when a device is opened
//! (`self_test::coop_matrix`). Another compares a few ops with the processor's, for those who choose a
//! device by themselves ([`self_test()`]).

#![deny(unsafe_code)]

mod backend;
mod commands;
mod device;
mod kernels;
mod layouts;
mod memory;
mod ops;
mod self_test;
mod state;
#[cfg(test)]
mod tests;
mod tuning;
mod words;

pub use backend::new_backend;
pub use device::adapter::{AdapterFacts, adapters};
pub use device::context::{Context, OpenError};
pub use layouts::product::{Form, Layout, Tiles};
pub use layouts::table::ProductShape;
pub use ops::moe::in_place::reads_in_place;
pub use ops::moe::route::MAX_EXPERTS;
pub use self_test::coop_matrix::uses_coop_matrix;
pub use self_test::{SelfTestError, self_test};
pub use state::gpu::Wgpu;
pub use tuning::file::measurement_key;
pub use tuning::measure::BandwidthProbe;
pub use tuning::trial::{ProductProbe, ProductTime};
pub use tuning::tune::{TuneOptions, Tuning, n_tuned, tune};
