//! What distinguishes one picture from another in the keys of prompts.

use std::fmt;

use sha2::{Digest, Sha256};

use super::layout::Layout;

/// The SHA-256 of a resized picture and its layout.
///
/// Two pictures of one size have the same tokens, so that prefixes, snapshots and sessions are known by
/// tokens and these. Equal pixels in files of different formats have the same one. It is meant for one
/// processor: another one may give other values to the same pixels.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PictureId([u8; 32]);

impl PictureId {
    pub(super) fn of(canvas: &[u8], layout: &Layout) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"moeflux picture 1\0");
        let (resized, size, grid) = (layout.resized(), layout.canvas(), layout.grid());
        let numbers =
            [resized.width, resized.height, size.width, size.height, grid.rows, grid.columns];
        for number in numbers {
            hash.update((number as u64).to_le_bytes());
        }
        hash.update(canvas);
        Self(hash.finalize().into())
    }

    /// The 256 bits.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for PictureId {
    /// 64 hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for PictureId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PictureId({self})")
    }
}
