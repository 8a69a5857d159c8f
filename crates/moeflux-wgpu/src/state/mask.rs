//! The positions that a selection has chosen.

use crate::device::buffer::Mem;
use crate::state::scratch::Grown;

/// The positions that each row of a batch attends to, as bits.
#[derive(Debug, Default)]
pub(crate) struct Mask {
    pub(crate) memory: Grown,
    pub(crate) mem: Option<Mem>,
    /// Words of a row.
    pub(crate) words: usize,
}
