//! Files of pictures: which format, how large, and their pixels.
//!
//! Each format's module walks the file's own structure first. What it finds (size, orientation, scans)
//! is checked, and the decoder gets a copy of the parts that pixels depend on: no text, profile or
//! second frame reaches it.

mod bytes;
mod exif;
mod gif;
mod jpeg;
mod png;
mod prefix_codes;
mod stored;
mod webp;
mod white;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::PictureError;
use crate::format::PictureFormat;
use crate::limits::DecodeLimits;
use crate::memory::try_room;
use crate::size::Size;

use stored::Stored;

/// The format whose signature the bytes begin with.
fn format_of(bytes: &[u8]) -> Option<PictureFormat> {
    if bytes.starts_with(png::SIGNATURE) {
        Some(PictureFormat::Png)
    } else if bytes.starts_with(jpeg::SIGNATURE) {
        Some(PictureFormat::Jpeg)
    } else if bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") {
        Some(PictureFormat::WebP)
    } else if bytes.starts_with(b"GIF87a") || bytes.starts_with(b"GIF89a") {
        Some(PictureFormat::Gif)
    } else {
        None
    }
}

/// The parts of a file that pixels depend on.
#[derive(Debug)]
enum Pixels<'a> {
    Png(png::Parts<'a>),
    Jpeg(jpeg::Parts<'a>),
    WebP(webp::Parts<'a>),
    Gif(gif::Parts<'a>),
}

fn stored<'a>(bytes: &'a [u8], limits: &DecodeLimits) -> Result<Stored<Pixels<'a>>, PictureError> {
    limits.check_file(bytes)?;
    let format = format_of(bytes).ok_or(PictureError::UnknownFormat)?;
    let stored = match format {
        PictureFormat::Png => png::stored(bytes)?.map(Pixels::Png),
        PictureFormat::Jpeg => jpeg::stored(bytes, limits.jpeg_scans)?.map(Pixels::Jpeg),
        PictureFormat::WebP => webp::stored(bytes)?.map(Pixels::WebP),
        PictureFormat::Gif => gif::stored(bytes)?.map(Pixels::Gif),
    };
    let Size { width, height } = stored.size;
    if width == 0 || height == 0 {
        return Err(PictureError::Empty { format, width, height });
    }
    limits.check_size(stored.size)?;
    Ok(stored)
}

/// The size of a picture as [`crate::Picture::decode`] returns it, from the structure of the file: no
/// pixel is decoded.
///
/// # Errors
/// As decoding, but for what only pixels show.
pub fn picture_size(bytes: &[u8], limits: &DecodeLimits) -> Result<Size, PictureError> {
    let stored = stored(bytes, limits)?;
    Ok(stored.orientation.turned(stored.size))
}

/// The size of a picture, and its pixels in RGB.
pub(crate) fn decode(bytes: &[u8], limits: &DecodeLimits) -> Result<(Size, Vec<u8>), PictureError> {
    let stored = stored(bytes, limits)?;
    let size = stored.size;
    let format = format_of(bytes).ok_or(PictureError::UnknownFormat)?;
    if stored.orientation.swaps_sides() {
        // The stored and the shown picture at once.
        let needed = 6 * size.width as u64 * size.height as u64;
        limits.check_memory(needed)?;
        try_room(needed)?;
    }
    // The decoders are made for damaged files; should one panic all the same, the picture is refused.
    let rgb = catch_unwind(AssertUnwindSafe(|| match stored.parts {
        Pixels::Png(parts) => png::decode(size, &parts, limits),
        Pixels::Jpeg(parts) => jpeg::decode(size, &parts, limits),
        Pixels::WebP(parts) => webp::decode(size, &parts, limits),
        Pixels::Gif(parts) => gif::decode(size, &parts, limits),
    }));
    let rgb = rgb.unwrap_or_else(|_| Err(PictureError::damaged(format, "its decoder failed")))?;
    stored.orientation.apply(size, rgb)
}
