//! Weight matrices times rows of activations, the same bits on every
//! instruction set.
//!
//! Two definitions, each with a plain one in `scalar.rs`:
//! - **integer**: an affine matrix, or one of MXFP4 or NVFP4, whose elements are
//!   halves of integers, times activations rounded to integers of
//!   one or two limbs of 8 bits ([`Quantised`]). The dot `d` of a group is
//!   exact in 32 bits; groups go by ascending column:
//!   `acc = fma(d as f32, scale * s, acc)`, `off = fma(bias, s * t, off)` with
//!   `t` the sum of the activations' integers, and the output is `acc + off`.
//!   In MXFP4 and NVFP4 an integer is twice the element and 12 more, the scale
//!   half of the stored one, and the bias minus six times that; where an affine
//!   matrix has no biases, they are scales times a power of two. What blocks of ggml
//!   decode to is that of [`BlockType`](moeflux_core::quant::BlockType).
//! - **full**: any matrix, decoded to `f32` (affine: `fma(q, scale, bias)`),
//!   times `f32` activations. Sixteen partial sums, lane = column mod 16,
//!   `lane = fma(w, x, lane)`, then added as a tree of 8, 4, 2, 1. Where inputs
//!   are stored before outputs it is one sum, by ascending input.
//!
//! Where all of a matrix shares a scale, each output is multiplied by it last.
//!
//! Where the rows of a matrix are the lanes of vectors, kernels are written once, over `lanes::Lanes`,
//! which `avx2` and `avx512` implement: `stored_params` makes scales and biases of what planes store,
//! `block_params` of what blocks store. `step_codes` says what bytes of blocks become codes. How codes are
//! multiplied differs with what the instruction set multiplies, and has kernels of its own.
//!
//! No output is ever split, so neither the number of threads nor the number of
//! rows changes a bit.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod block_format;
#[cfg(target_arch = "x86_64")]
mod block_params;
#[cfg(target_arch = "x86_64")]
mod by_type;
mod decode;
mod dispatch;
mod floats;
mod full;
mod heads;
mod integers;
mod job;
mod jobs;
#[cfg(target_arch = "x86_64")]
mod lane_params;
#[cfg(target_arch = "x86_64")]
mod lanes;
#[cfg(target_arch = "aarch64")]
mod neon;
mod partials;
mod planes;
mod prepacked;
mod product;
mod quantise;
mod quantised;
mod rounded_row;
mod rows;
mod scalar;
mod small;
#[cfg(target_arch = "x86_64")]
mod small_kernels;
mod staged;
#[cfg(target_arch = "x86_64")]
mod step_codes;
#[cfg(target_arch = "x86_64")]
mod steps;
#[cfg(target_arch = "x86_64")]
mod stored_params;
#[cfg(test)]
mod tests;
mod transposed;

#[cfg(target_arch = "x86_64")]
pub(super) use amx::Tiles;
pub use heads::{HeadColumns, HeadJob, head_products};
pub use integers::integer_group_size;
pub(super) use integers::integer_group_size_of;
pub use job::{Activations, MatmulJob};
pub use jobs::run_jobs;
pub use quantise::Rounding;
pub use quantised::Quantised;
pub use rows::{FloatRows, OutRows, RowMap};
