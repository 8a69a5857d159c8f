//! Every op in WGSL, on any GPU that wgpu reaches.
//!
//! [`Wgpu`] records kernels in the order of its ops (`encoder`) and waits for
//! the device where an op reads back. Weights, caches and activations are
//! buffers of the device (`arena`, `caches`); experts are copied into slots
//! there and stay while there is room (`experts`).

#![deny(unsafe_code)]

mod arena;
mod backend;
mod caches;
mod context;
mod encoder;
mod experimental;
mod experts;
mod layout;
mod measure;
mod ops;
mod pipelines;
mod shader;
#[cfg(test)]
mod tests;
mod units;

pub use backend::Wgpu;
pub use context::{AdapterFacts, Context, OpenError, adapters};
pub use layout::{Form, Layout, Tiles};
pub use measure::Stream;
pub use ops::MAX_EXPERTS;
