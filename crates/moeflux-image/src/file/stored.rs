//! What the structure of a file says, before any pixel is decoded.

use super::exif::Orientation;
use crate::size::Size;

/// A picture as its file has it.
#[derive(Debug)]
pub(super) struct Stored<P> {
    /// Before the orientation is applied.
    pub(super) size: Size,
    pub(super) orientation: Orientation,
    /// What pixels depend on.
    pub(super) parts: P,
}

impl<P> Stored<P> {
    pub(super) fn map<Q>(self, wrap: impl FnOnce(P) -> Q) -> Stored<Q> {
        Stored { size: self.size, orientation: self.orientation, parts: wrap(self.parts) }
    }
}
