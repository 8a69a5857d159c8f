//! The orientation that EXIF names.

use super::bytes::Bytes;
use crate::error::PictureError;
use crate::memory::zeroed_bytes;
use crate::size::Size;

/// The tag of the orientation.
const ORIENTATION: u16 = 0x0112;

/// Which of the picture's sides are stored as top and left: 1 to 8, as TIFF 6.0 numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Orientation(u8);

impl Orientation {
    /// Stored as it is shown.
    pub(super) const UPRIGHT: Self = Self(1);

    /// The orientation of an EXIF block, with or without its name in front. Anything but a number
    /// from 1 to 8 means upright. Only the first directory is read: links between directories are not
    /// followed.
    pub(super) fn of_exif(exif: &[u8]) -> Self {
        let exif = exif.strip_prefix(b"Exif\0\0").unwrap_or(exif);
        match find(exif) {
            Some(value @ 1..=8) => Self(value as u8),
            _ => Self::UPRIGHT,
        }
    }

    /// Whether the shown picture is as wide as the stored one is high.
    pub(super) fn swaps_sides(self) -> bool {
        self.0 >= 5
    }

    /// The size of a stored picture as it is shown.
    pub(super) fn turned(self, size: Size) -> Size {
        let Size { width, height } = size;
        if self.swaps_sides() { Size { width: height, height: width } } else { size }
    }

    /// The shown picture from the stored one.
    pub(super) fn apply(
        self,
        size: Size,
        mut rgb: Vec<u8>,
    ) -> Result<(Size, Vec<u8>), PictureError> {
        let row_bytes = 3 * size.width;
        if self.swaps_sides() {
            return Ok((self.turned(size), self.transposed(size, &rgb)?));
        }
        if matches!(self.0, 3 | 4) {
            let (top, bottom) = rgb.split_at_mut(size.height / 2 * row_bytes);
            let from_below = bottom.chunks_exact_mut(row_bytes).rev();
            top.chunks_exact_mut(row_bytes).zip(from_below).for_each(|(a, b)| a.swap_with_slice(b));
        }
        if matches!(self.0, 2 | 3) {
            rgb.chunks_exact_mut(row_bytes).for_each(mirror);
        }
        Ok((size, rgb))
    }

    /// Orientations 5 to 8: rows of the shown picture are columns of the stored one.
    fn transposed(self, stored: Size, rgb: &[u8]) -> Result<Vec<u8>, PictureError> {
        let mut shown = zeroed_bytes(rgb.len())?;
        let from_right = matches!(self.0, 7 | 8);
        let from_bottom = matches!(self.0, 6 | 7);
        for (y, row) in shown.chunks_exact_mut(3 * stored.height).enumerate() {
            let column = if from_right { stored.width - 1 - y } else { y };
            for (x, pixel) in row.as_chunks_mut::<3>().0.iter_mut().enumerate() {
                let line = if from_bottom { stored.height - 1 - x } else { x };
                let at = 3 * (line * stored.width + column);
                pixel.copy_from_slice(&rgb[at..at + 3]);
            }
        }
        Ok(shown)
    }
}

/// Turns a row of pixels round.
fn mirror(row: &mut [u8]) {
    row.as_chunks_mut::<3>().0.reverse();
}

/// The orientation's value in the first directory of a TIFF block.
fn find(tiff: &[u8]) -> Option<u32> {
    let is_little = match tiff.get(..4)? {
        b"II*\0" => true,
        b"MM\0*" => false,
        _ => return None,
    };
    let u16_of = |bytes: &mut Bytes<'_>| if is_little { bytes.u16_le() } else { bytes.u16_be() };
    let u32_of = |bytes: &mut Bytes<'_>| if is_little { bytes.u32_le() } else { bytes.u32_be() };
    let start = u32_of(&mut Bytes::new(tiff.get(4..)?))?;
    let mut directory = Bytes::new(tiff.get(usize::try_from(start).ok()?..)?);
    for _ in 0..u16_of(&mut directory)? {
        let tag = u16_of(&mut directory)?;
        let kind = u16_of(&mut directory)?;
        let _count = u32_of(&mut directory)?;
        let mut value = Bytes::new(directory.take(4)?);
        if tag == ORIENTATION {
            // Types 1, 3 and 4: unsigned numbers of one, two and four bytes.
            return match kind {
                1 => value.u8().map(u32::from),
                3 => u16_of(&mut value).map(u32::from),
                4 => u32_of(&mut value),
                _ => None,
            };
        }
    }
    None
}
