//! Every op in WGSL, on any GPU that wgpu reaches.
//!
//! [`Wgpu`] records kernels in the order of its ops (`encoder`) and waits for
//! the device where an op reads back. Weights, caches and activations are
//! buffers of the device (`arena`, `caches`); experts are copied into slots
//! there and stay while there is room (`experts`), by threads (`writers`) and a
//! ring of mapped buffers (`staging`), or by a kernel that reads the host's memory
//! (`imports`), also of what the device chose alone (`layer_cache`). How products are laid out on a device is
//! measured there and kept in a file (`tuning`).
//!
//! On one device bits depend on the model, the tokens, and how inputs are
//! rounded alone: neither on layouts and forms of products nor on where experts
//! lie. Devices differ from each other in a last few bits, also by whether
//! products with many rows go through units for matrices ([`Tiles`]), which
//! is tried when a device is opened and not chosen by time.

#![deny(unsafe_code)]

mod ahead;
mod arena;
mod buffer;
mod caches;
mod clock;
mod context;
mod dispatch;
mod encoder;
mod experimental;
mod experts;
mod fetching;
mod grid;
mod imports;
mod kept_layer;
mod last_sum;
mod layer_cache;
mod layout;
mod mask;
mod matrix;
mod measure;
mod ops;
mod packing;
mod pipelines;
mod recorder;
mod rope_table;
mod rounded;
mod scratch;
mod shader;
mod staging;
mod state;
#[cfg(test)]
mod tests;
mod tuning;
mod units;
mod weights;
mod words;
mod writers;

pub use context::{AdapterFacts, Context, OpenError, adapters};
pub use layout::{Form, Layout, Tiles};
pub use measure::Stream;
pub use ops::{MAX_EXPERTS, reads_in_place};
pub use state::Wgpu;
pub use tuning::{ProductProbe, ProductShape, ProductTime, TuneOptions, Tuning, n_tuned};
