//! Memory that may be refused: no allocation whose size comes from a file ends the process.

use crate::error::PictureError;

/// `len` elements that are all `T::default()`.
///
/// # Errors
/// The number of bytes that there is no room for.
pub(crate) fn zeroed<T: Copy + Default>(len: usize) -> Result<Vec<T>, usize> {
    let mut values = reserved(len)?;
    values.resize(len, T::default());
    Ok(values)
}

/// No elements, with room for `len`.
///
/// # Errors
/// The number of bytes that there is no room for.
pub(crate) fn reserved<T>(len: usize) -> Result<Vec<T>, usize> {
    let mut values = Vec::new();
    let bytes = len.saturating_mul(size_of::<T>());
    values.try_reserve_exact(len).map_err(|_| bytes)?;
    Ok(values)
}

/// Whether `bytes` can be taken now. Decoders of other crates take memory without asking; where the
/// system limits memory, this finds out before they do.
pub(crate) fn try_room(bytes: u64) -> Result<(), PictureError> {
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    reserved::<u8>(bytes).map(drop).map_err(|bytes| PictureError::OutOfMemory { bytes })
}

/// Zeros for the bytes of a picture.
pub(crate) fn zeroed_bytes(len: usize) -> Result<Vec<u8>, PictureError> {
    zeroed(len).map_err(|bytes| PictureError::OutOfMemory { bytes })
}

/// Room for a copy of parts of a file.
pub(crate) fn reserved_bytes(len: usize) -> Result<Vec<u8>, PictureError> {
    reserved(len).map_err(|bytes| PictureError::OutOfMemory { bytes })
}
