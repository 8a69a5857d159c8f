//! Sixteen rows of a matrix, unpacked: the memory that one call hands to the next.

use super::vector::ROWS;

/// Two columns of sixteen rows.
pub(super) type Pair = [[i32; ROWS]; 2];

/// What is kept from call to call.
#[derive(Default)]
pub(super) struct UnpackedRows {
    pub(super) pairs: Vec<Pair>,
    /// (rows, COLS)
    pub(super) unpacked: Vec<u8>,
}
