//! How the elements of a weight matrix are stored, and which values they represent.
//!
//! The affine format is MLX's: a row is a stream of unsigned `bits`-wide
//! integers, lowest column in the lowest bits of little-endian 32-bit words,
//! in groups of `group_size` columns that share one scale and one bias:
//! `w = scale * q + bias`.
//!
//! The micro-scaled formats (OCP's MX, NVIDIA's NVFP4) store floats of 4 or 8 bits in groups that
//! share a scale of 8 bits, without a bias. In DeepSeek-V3's FP8, a rectangle of a matrix shares a
//! scale: `w = scale * element`. In NF4 of bitsandbytes, `w = scale * level`: a table has the level of
//! each code.

mod affine;
mod block;
mod decode;
mod feedback;
mod finite;
mod fit;
mod float;
mod format;
mod normal;
mod quantise;
mod small;
mod view;

pub use affine::{Affine, AffineBias};
pub use block::{BlockType, Codebooks};
pub use decode::unpack_group;
pub use feedback::{ErrorFeedback, feedback_rows};
pub use finite::Encoding;
pub use fit::quantise_rows_weighted;
pub use float::{Float, bf16_to_f32};
pub use format::MatrixFormat;
pub use normal::{NF4_GROUP, NF4_LEVELS, nf4_pair};
pub use quantise::{QuantError, QuantiseError, QuantisedRows, pack_group, quantise_rows};
pub use small::{MicroScaled, ScaledBlocks, SmallFloat, SmallScale};
pub use small::{e2m1_to_f32, e4m3_to_f32, e8m0_to_f32};
pub use view::MatrixView;
