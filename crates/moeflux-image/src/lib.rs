//! From the bytes of a picture to the patches that a vision tower takes.
//!
//! Three steps, each equal to what published processors do:
//!
//! 1. [`Picture::decode`]: PNG, JPEG, WebP or GIF to RGB of 8 bits, in the orientation that EXIF
//!    names, with transparency over white. [`picture_size`] reads the header alone.
//! 2. [`Processor::layout`]: the size after resizing, the canvas, the grid of patches and the number
//!    of tokens, by a [`SizeRule`].
//! 3. [`Processor::prepare`]: the resized picture on its canvas, from which [`Prepared`] gives
//!    patches in rows of `f32`, any range of them, and a [`PictureId`] for keys of prefixes.
//!
//! PNG, GIF, lossless WebP, the resize and the patches have the bits of the reference. JPEG differs by
//! the last levels of its decoder.
//!
//! Pictures are untrusted. Their sizes are read from headers and held against [`DecodeLimits`] before
//! memory is taken, and every error is one line.

#![forbid(unsafe_code)]

mod error;
mod file;
mod format;
mod limits;
mod memory;
mod picture;
mod processor;
mod resize;
mod size;

pub use error::{ConfigError, LayoutError, PictureError};
pub use file::picture_size;
pub use format::PictureFormat;
pub use limits::DecodeLimits;
pub use picture::Picture;
pub use processor::{
    Frames, Grid, Layout, Levels, Parameters, Patches, PictureId, Prepared, Processor, SizeRule,
    ValueOrder,
};
pub use size::Size;
