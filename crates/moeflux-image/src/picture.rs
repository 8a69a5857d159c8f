//! A decoded picture.

use crate::error::{LayoutError, PictureError};
use crate::file;
use crate::limits::DecodeLimits;
use crate::memory::zeroed;
use crate::resize::resize_into;
use crate::size::Size;

/// A picture in RGB of 8 bits: rows from the top, pixels from the left, three bytes each.
#[derive(Clone, PartialEq, Eq)]
pub struct Picture {
    size: Size,
    rgb: Vec<u8>,
}

impl std::fmt::Debug for Picture {
    /// Without the pixels: logs hold no pictures.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Picture").field("size", &self.size).finish_non_exhaustive()
    }
}

impl Picture {
    /// A picture of pixels that exist already.
    ///
    /// # Panics
    /// `rgb` does not have `3 * width * height` bytes, or a side is 0.
    pub fn from_rgb(size: Size, rgb: Vec<u8>) -> Self {
        assert!(size.width > 0 && size.height > 0, "a picture without pixels");
        let n_bytes = size.width.checked_mul(size.height).and_then(|n| n.checked_mul(3));
        assert_eq!(n_bytes, Some(rgb.len()), "three bytes a pixel");
        Self { size, rgb }
    }

    /// Decodes a file. The bytes decide the format, whatever name or media type came with them.
    ///
    /// The orientation of EXIF (in JPEG, PNG and WebP) is applied as Pillow's `exif_transpose` does
    /// (which also reads XMP where EXIF has none: this does not).
    /// Transparency is composited on white. Channels of 16 bits keep their high byte. Of animations the
    /// first frame is taken. Colour profiles and gamma are ignored, as published processors do.
    ///
    /// Two rare kinds of PNG follow its specification where Pillow does not: gray of 16 bits keeps its
    /// high byte (Pillow cuts levels at 255), and a transparent level of gray below 8 bits is compared
    /// before levels are scaled.
    ///
    /// # Errors
    /// What is too large by `limits`, cut off, damaged, or not read.
    pub fn decode(bytes: &[u8], limits: &DecodeLimits) -> Result<Self, PictureError> {
        let (size, rgb) = file::decode(bytes, limits)?;
        Ok(Self::from_rgb(size, rgb))
    }

    /// The picture at another size, stretched to it: bicubic with antialiasing in integers, with the bits
    /// of torchvision on pictures of 8 bits.
    ///
    /// Memory: 3 bytes for each pixel of the result, and of (new width x old height) meanwhile.
    ///
    /// # Errors
    /// There is no memory for it, or a side is 0.
    pub fn resized(&self, size: Size) -> Result<Self, LayoutError> {
        let Size { width, height } = size;
        let n_bytes = width.checked_mul(height).and_then(|n| n.checked_mul(3));
        let n_bytes = n_bytes.filter(|n| *n > 0).ok_or(LayoutError::Side { width, height })?;
        let no_memory = |bytes| LayoutError::OutOfMemory { bytes };
        let mut rgb = zeroed(n_bytes).map_err(no_memory)?;
        resize_into(&self.rgb, self.size, size, &mut rgb, 3 * width).map_err(no_memory)?;
        Ok(Self { size, rgb })
    }

    /// Pixels of a row, and rows.
    pub fn size(&self) -> Size {
        self.size
    }

    /// Pixels of a row.
    pub fn width(&self) -> usize {
        self.size.width
    }

    /// Rows.
    pub fn height(&self) -> usize {
        self.size.height
    }

    /// `3 * width * height` bytes: rows from the top, pixels from the left, red, green, blue.
    pub fn rgb(&self) -> &[u8] {
        &self.rgb
    }
}
