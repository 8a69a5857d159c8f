//! Bicubic resizing with antialiasing in integers, as torchvision does it for pictures of 8 bits.

mod passes;
mod weights;

use crate::size::Size;

/// Resizes a picture in RGB, or returns the bytes that there is no memory for. Rows are resized first,
/// then columns, with 8 bits between; a side that keeps its length is not touched.
///
/// `to` is `rows` lines of `row_bytes` bytes, of which the picture takes the upper left corner.
///
/// Memory: 3 * `size.width` * (height of the picture) bytes where both sides change, and the weights.
pub(crate) fn resize_into(
    rgb: &[u8],
    from: Size,
    size: Size,
    to: &mut [u8],
    row_bytes: usize,
) -> Result<(), usize> {
    let lines = to.chunks_exact_mut(row_bytes).map(|line| &mut line[..3 * size.width]);
    let lines = lines.take(size.height);
    if from.height == size.height {
        return passes::rows(rgb, from.width, size.width, lines);
    }
    if from.width == size.width {
        return passes::columns(rgb, from, size.height, lines);
    }
    let narrow = Size { width: size.width, height: from.height };
    let mut between = crate::memory::zeroed(3 * narrow.width * narrow.height)?;
    let between_lines = between.chunks_exact_mut(3 * narrow.width);
    passes::rows(rgb, from.width, size.width, between_lines)?;
    passes::columns(&between, narrow, size.height, lines)
}
