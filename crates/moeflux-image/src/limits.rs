//! How large a picture may be, and how much memory its decoding may take.

use crate::error::PictureError;
use crate::size::Size;

/// What [`crate::Picture::decode`] accepts. All but the last are read from headers before memory is
/// taken.
///
/// # Memory
///
/// With F bytes of file and w x h pixels, decoding takes at most, in addition to the file:
///
/// | format | bytes |
/// |---|---|
/// | PNG | F + 3wh + 64w + 1 MiB |
/// | GIF | F + 3wh + s + 1 MiB, with s the pixels of the first frame |
/// | JPEG | F + cwh + 2c(w + 32)(h + 32) where it has several scans + 1536(w + 32) + 1 MiB, with c = 3, or 4 for CMYK |
/// | WebP | 5F + 12(w + 16)(h + 16) + 1 MiB; 16 MiB more where it is lossy; 3wh more where its first frame is smaller; and the tables of lossless parts, counted in the file |
///
/// Where the orientation swaps the sides it is at least 6wh: the decoder's memory is free by then. What
/// remains is the picture of 3wh bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeLimits {
    /// Length of the file, in bytes.
    pub file_bytes: usize,
    /// Pixels of the longer side.
    pub side: usize,
    /// Pixels of the picture.
    pub pixels: usize,
    /// Scans of a JPEG: each is a pass over all pixels.
    pub jpeg_scans: usize,
    /// Bytes of memory that decoding may take, by the formulas above.
    pub memory_bytes: usize,
}

impl Default for DecodeLimits {
    /// 20 MiB of file, sides of 16,384, 64 Mi pixels, 100 scans, 1 GiB of memory.
    fn default() -> Self {
        Self {
            file_bytes: 20 << 20,
            side: 16_384,
            pixels: 64 << 20,
            jpeg_scans: 100,
            memory_bytes: 1 << 30,
        }
    }
}

impl DecodeLimits {
    /// Refuses files that are too long.
    pub(crate) fn check_file(&self, bytes: &[u8]) -> Result<(), PictureError> {
        if bytes.len() > self.file_bytes {
            let limit = self.file_bytes;
            return Err(PictureError::FileTooLong { bytes: bytes.len(), limit });
        }
        Ok(())
    }

    /// Refuses pictures that are too large. Sizes from headers are below 2^32, and products of two
    /// are computed in 64 bits.
    pub(crate) fn check_size(&self, size: Size) -> Result<(), PictureError> {
        let Size { width, height } = size;
        if width.max(height) > self.side {
            return Err(PictureError::SideTooLong { width, height, limit: self.side });
        }
        if width as u64 * height as u64 > self.pixels as u64 {
            return Err(PictureError::TooManyPixels { width, height, limit: self.pixels });
        }
        Ok(())
    }

    /// Refuses what may take too much memory.
    pub(crate) fn check_memory(&self, needed: u64) -> Result<(), PictureError> {
        if needed > self.memory_bytes as u64 {
            let needed = usize::try_from(needed).unwrap_or(usize::MAX);
            return Err(PictureError::TooMuchMemory { needed, limit: self.memory_bytes });
        }
        Ok(())
    }
}
