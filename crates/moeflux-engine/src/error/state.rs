//! Why bytes are not the state of a session.

use std::io;
use std::path::PathBuf;

use moeflux_core::{OptionId, WriteError};

/// Why a state in the original system's format was not written or not read.
///
/// The original also knows `BuffersNotReady`, for states saved before the first
/// token: here caches exist as soon as a session does.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// The caller's buffer does not hold the state.
    #[error("the state needs a buffer of {need} bytes, this one has {have}: ask for state_size")]
    BufferTooSmall {
        /// Bytes of the buffer.
        have: usize,
        /// Bytes of the state.
        need: usize,
    },
    /// The bytes are no state.
    #[error("this is no saved state: it begins with {got:#010x} instead of {want:#010x}")]
    BadMagic {
        /// The value in the file.
        got: u32,
        /// The expected value.
        want: u32,
    },
    /// The format has all positions, and layers with a window have forgotten some.
    #[error(
        "layers with a window have forgotten positions, which this format needs, before {end}: \
         save the session as a snapshot"
    )]
    Forgotten {
        /// Where the session ends.
        end: usize,
    },
    /// An unknown version.
    #[error("the state has version {got}, known are 1 and 2")]
    BadVersion {
        /// The value in the file.
        got: u32,
    },
    /// The state is of a model of another shape.
    #[error("the state's {field} is {got}, this model's is {want}")]
    ShapeMismatch {
        /// The field that differs.
        field: &'static str,
        /// The state's.
        got: u64,
        /// The model's.
        want: u64,
    },
    /// A layer has fewer than no positions.
    #[error("layer {layer} of the state has {len} positions")]
    NegativeLen {
        /// The layer.
        layer: usize,
        /// The value in the file.
        len: i32,
    },
    /// More positions than the session may have.
    #[error("the state has {len} positions, and {limit} fit ({})", OptionId::Ctx)]
    LenOverflow {
        /// Positions of the state.
        len: usize,
        /// Positions that fit.
        limit: usize,
    },
    /// The state ends too early.
    #[error("the state ends in layer {layer}: {need} bytes are needed there, {got} are left")]
    Truncated {
        /// The layer; 0 also for the header.
        layer: usize,
        /// Bytes needed.
        need: usize,
        /// Bytes that are there.
        got: usize,
    },
    /// More follows than a state holds.
    #[error("{n} bytes follow the end of the state")]
    TrailingBytes {
        /// How many.
        n: usize,
    },
    /// Version 1 cannot describe multi-head latent attention.
    #[error("a state of version 1 has no room for latent attention: save it as version 2")]
    MlaUnsupported,
    /// The model has layers that the format cannot describe.
    #[error("the original system's format has no room for this model ({what}): save to a file")]
    NoSuchLayers {
        /// Which layers.
        what: &'static str,
    },
}

/// Why a snapshot file was not written or not used.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// It is another kind of file.
    #[error("{}: not a snapshot of a session", path.display())]
    NotASnapshot {
        /// The file.
        path: PathBuf,
    },
    /// It was written in another version of the format.
    #[error("{}: a snapshot of version {got}, known is {known}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        got: u32,
        /// Ours.
        known: u32,
    },
    /// It ends too early, or too late.
    #[error("{}: {got} bytes long instead of {want}: delete it", path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// Bytes that it should have, as far as the header is readable.
        want: u64,
        /// Bytes that it has.
        got: u64,
    },
    /// Its fields contradict each other.
    #[error("{}: damaged ({what}): delete it", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The problem.
        what: String,
    },
    /// It belongs to another model, or the same with other weights.
    #[error(
        "{}: a snapshot of another model, or of another number of experts a token \
         ({family}, {got}; this one is {want})",
        path.display()
    )]
    OtherModel {
        /// The file.
        path: PathBuf,
        /// The family of its model.
        family: String,
        /// The identity of its model.
        got: String,
        /// The identity of the open model.
        want: String,
    },
    /// It was made with other options.
    #[error("{}: made with {option} {got}, now it is {want}", path.display())]
    OtherOption {
        /// The file.
        path: PathBuf,
        /// Which option differs.
        option: OptionId,
        /// Its value in the file.
        got: String,
        /// Its value now.
        want: String,
    },
    /// More positions than the session may have.
    #[error("{}: {positions} positions do not fit into {limit} ({})", path.display(), OptionId::Ctx)]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Its positions.
        positions: usize,
        /// Positions that fit.
        limit: usize,
    },
}
