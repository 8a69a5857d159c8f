//! WebP: its chunks, and its picture or first frame.

use std::io::Cursor;

use image_webp::{DecodingError, WebPDecoder};

use super::bytes::Bytes;
use super::exif::Orientation;
use super::prefix_codes;
use super::stored::Stored;
use super::white::rgba_to_rgb;
use crate::error::PictureError;
use crate::format::PictureFormat;
use crate::limits::DecodeLimits;
use crate::memory::{reserved_bytes, try_room, zeroed_bytes};
use crate::size::Size;

const FORMAT: PictureFormat = PictureFormat::WebP;

/// Flags of the extended header.
const HAS_ALPHA: u8 = 0x10;

/// The size of the fields that precede the picture of a frame.
const FRAME_FIELDS: usize = 16;

/// A picture without its container.
#[derive(Debug, Clone, Copy)]
struct Bitstream<'a> {
    size: Size,
    is_lossless: bool,
    content: &'a [u8],
    /// Transparency that a lossy picture has apart.
    alpha: Option<&'a [u8]>,
}

/// A lossy picture says how long its partitions are, in 24 bits, and the decoder takes memory for one
/// before it finds that the file is shorter.
const LARGEST_PARTITION: u64 = 16 << 20;

#[derive(Debug)]
pub(super) struct Parts<'a> {
    picture: Bitstream<'a>,
    /// Where the picture is on the canvas.
    left: usize,
    top: usize,
    /// What the picture leaves free of the canvas: white where that is transparent, else black.
    around: u8,
}

struct Chunk<'a> {
    name: &'a [u8],
    content: &'a [u8],
}

fn cut_off() -> PictureError {
    PictureError::CutOff { format: FORMAT }
}

fn damaged(reason: &str) -> PictureError {
    PictureError::damaged(FORMAT, reason)
}

fn next_chunk<'a>(bytes: &mut Bytes<'a>) -> Option<Chunk<'a>> {
    let name = bytes.take(4)?;
    let len = usize::try_from(bytes.u32_le()?).ok()?;
    let content = bytes.take(len)?;
    // Chunks begin at even places; the last one may lack its padding.
    if len % 2 == 1 {
        bytes.take(1);
    }
    Some(Chunk { name, content })
}

pub(super) fn stored(file: &[u8]) -> Result<Stored<Parts<'_>>, PictureError> {
    let mut bytes = Bytes::new(file);
    let mut head = || {
        bytes.take(4)?;
        let len = usize::try_from(bytes.u32_le()?).ok()?;
        bytes.take(len.min(bytes.rest().len())).filter(|riff| riff.len() == len)
    };
    let riff = head().ok_or_else(cut_off)?;
    let mut chunks = Bytes::new(riff.get(4..).unwrap_or_default());
    let first = next_chunk(&mut chunks).ok_or_else(cut_off)?;
    if first.name == b"VP8X" {
        return extended(first.content, chunks);
    }
    let mut chunks = Bytes::new(riff.get(4..).unwrap_or_default());
    let picture = bitstream(&mut chunks)?;
    let parts = Parts { picture, left: 0, top: 0, around: 0 };
    let orientation = Orientation::UPRIGHT;
    Ok(Stored { size: picture.size, orientation, parts })
}

/// A file with an extended header: its canvas, its picture or first frame, and its orientation.
fn extended<'a>(header: &[u8], chunks: Bytes<'a>) -> Result<Stored<Parts<'a>>, PictureError> {
    let mut header = Bytes::new(header);
    let mut fields = || {
        let [flags, ..] = header.array::<4>()?;
        let (width, height) = (header.u24_le()?, header.u24_le()?);
        let canvas = Size {
            width: usize::try_from(width + 1).ok()?,
            height: usize::try_from(height + 1).ok()?,
        };
        Some((flags, canvas))
    };
    let (flags, canvas) = fields().ok_or_else(|| damaged("its header is too short"))?;
    let around = if flags & HAS_ALPHA != 0 { 255 } else { 0 };
    let mut orientation = Orientation::UPRIGHT;
    let mut parts: Option<Parts<'_>> = None;
    let mut alpha = None;
    let mut left = chunks;
    while !left.rest().is_empty() {
        let chunk = next_chunk(&mut left).ok_or_else(cut_off)?;
        match chunk.name {
            b"EXIF" => orientation = Orientation::of_exif(chunk.content),
            b"ALPH" if parts.is_none() => alpha = Some(chunk.content),
            b"VP8 " | b"VP8L" if parts.is_none() => {
                let picture = described(&chunk, alpha)?;
                parts = Some(Parts { picture, left: 0, top: 0, around });
            }
            b"ANMF" if parts.is_none() => parts = Some(frame(chunk.content, around)?),
            _ => {}
        }
    }
    let parts = parts.ok_or_else(|| damaged("it has no picture"))?;
    let Size { width, height } = parts.picture.size;
    if parts.left + width > canvas.width || parts.top + height > canvas.height {
        return Err(damaged("its picture does not fit its canvas"));
    }
    Ok(Stored { size: canvas, orientation, parts })
}

/// The first frame of an animation.
fn frame(content: &[u8], around: u8) -> Result<Parts<'_>, PictureError> {
    let mut bytes = Bytes::new(content);
    let mut place = || {
        let (left, top) = (bytes.u24_le()?, bytes.u24_le()?);
        Some((usize::try_from(2 * left).ok()?, usize::try_from(2 * top).ok()?))
    };
    let (left, top) = place().ok_or_else(|| damaged("its frame is too short"))?;
    let mut chunks = Bytes::new(content.get(FRAME_FIELDS..).unwrap_or_default());
    Ok(Parts { picture: bitstream(&mut chunks)?, left, top, around })
}

/// The next picture among the chunks, with the transparency before it.
fn bitstream<'a>(chunks: &mut Bytes<'a>) -> Result<Bitstream<'a>, PictureError> {
    let mut alpha = None;
    loop {
        let chunk = next_chunk(chunks).ok_or_else(cut_off)?;
        match chunk.name {
            b"ALPH" => alpha = Some(chunk.content),
            b"VP8 " | b"VP8L" => return described(&chunk, alpha),
            _ => {}
        }
    }
}

/// The size of a picture, by its own header.
fn described<'a>(
    chunk: &Chunk<'a>,
    alpha: Option<&'a [u8]>,
) -> Result<Bitstream<'a>, PictureError> {
    let is_lossless = chunk.name == b"VP8L";
    let size = if is_lossless { lossless_size(chunk.content) } else { lossy_size(chunk.content) };
    let (width, height) = size.ok_or_else(|| damaged("its picture has no header"))?;
    let size = Size { width: usize::from(width), height: usize::from(height) };
    let alpha = alpha.filter(|_| !is_lossless);
    Ok(Bitstream { size, is_lossless, content: chunk.content, alpha })
}

fn lossy_size(content: &[u8]) -> Option<(u16, u16)> {
    let mut bytes = Bytes::new(content);
    let tag = bytes.u24_le()?;
    let is_key = tag & 1 == 0 && bytes.array()? == [0x9d, 0x01, 0x2a];
    let (width, height) = (bytes.u16_le()?, bytes.u16_le()?);
    // The upper two bits are factors for display.
    is_key.then_some((width & 0x3fff, height & 0x3fff))
}

fn lossless_size(content: &[u8]) -> Option<(u16, u16)> {
    let mut bytes = Bytes::new(content);
    let signature = bytes.u8()?;
    let fields = bytes.u32_le()?;
    let side = |bits: u32| u16::try_from(bits & 0x3fff).ok().map(|less| less + 1);
    (signature == 0x2f).then_some((side(fields)?, side(fields >> 14)?))
}

/// A chunk with its header, padded to an even length.
fn push_chunk(file: &mut Vec<u8>, name: &[u8; 4], content: &[u8]) -> Option<()> {
    file.extend_from_slice(name);
    file.extend_from_slice(&u32::try_from(content.len()).ok()?.to_le_bytes());
    file.extend_from_slice(content);
    if content.len() % 2 == 1 {
        file.push(0);
    }
    Some(())
}

/// The picture as a file of its own.
fn kept(picture: &Bitstream<'_>) -> Result<Vec<u8>, PictureError> {
    let alpha = picture.alpha.unwrap_or_default();
    let mut file = reserved_bytes(picture.content.len() + alpha.len() + 64)?;
    let mut fill = || {
        file.extend_from_slice(b"RIFF\0\0\0\0WEBP");
        if picture.alpha.is_some() {
            let side = |side: usize| u32::try_from(side - 1).ok().map(u32::to_le_bytes);
            let (width, height) = (side(picture.size.width)?, side(picture.size.height)?);
            let header = [&[HAS_ALPHA, 0, 0, 0], &width[..3], &height[..3]].concat();
            push_chunk(&mut file, b"VP8X", &header)?;
            push_chunk(&mut file, b"ALPH", alpha)?;
        }
        let name = if picture.is_lossless { b"VP8L" } else { b"VP8 " };
        push_chunk(&mut file, name, picture.content)?;
        let len = u32::try_from(file.len() - 8).ok()?;
        file[4..8].copy_from_slice(&len.to_le_bytes());
        Some(())
    };
    fill().ok_or_else(|| damaged("its chunks are too long"))?;
    Ok(file)
}

/// Checks the memory of decoding, as [`DecodeLimits`] has it: first that of pixels, then with the tables
/// of prefix codes, which are counted in the file.
fn check_memory(
    size: Size,
    picture: &Bitstream<'_>,
    limits: &DecodeLimits,
) -> Result<(), PictureError> {
    let alpha = picture.alpha.unwrap_or_default();
    let padded = |size: Size| (size.width as u64 + 16) * (size.height as u64 + 16);
    let file = 5 * (picture.content.len() + alpha.len()) as u64;
    let mut needed = file + 12 * padded(picture.size) + (1 << 20);
    if !picture.is_lossless {
        needed += LARGEST_PARTITION;
    }
    if size != picture.size {
        needed += 3 * padded(size);
    }
    limits.check_memory(needed)?;
    try_room(needed)?;
    let codes = if picture.is_lossless {
        prefix_codes::memory(picture.content.get(5..).unwrap_or_default(), picture.size)
    } else {
        match alpha {
            // The lowest two bits name the compression: 1 is lossless.
            [info, stream @ ..] if info & 3 == 1 => prefix_codes::memory(stream, picture.size),
            _ => Some(0),
        }
    };
    let codes = codes.ok_or_else(|| damaged("its prefix codes are broken"))?;
    if codes > 0 {
        needed += codes;
        limits.check_memory(needed)?;
        try_room(needed)?;
    }
    Ok(())
}

pub(super) fn decode(
    size: Size,
    parts: &Parts<'_>,
    limits: &DecodeLimits,
) -> Result<Vec<u8>, PictureError> {
    let picture = &parts.picture;
    if picture.size.width == 0 || picture.size.height == 0 {
        return Err(damaged("its frame has no pixels"));
    }
    check_memory(size, picture, limits)?;
    let file = kept(picture)?;
    let mut decoder = WebPDecoder::new(Cursor::new(&file)).map_err(refusal)?;
    let n_pixels = picture.size.width * picture.size.height;
    let n_channels = if decoder.has_alpha() { 4 } else { 3 };
    if decoder.output_buffer_size() != Some(n_channels * n_pixels) {
        return Err(damaged("its headers disagree"));
    }
    let mut pixels = zeroed_bytes(n_channels * n_pixels)?;
    decoder.read_image(&mut pixels).map_err(refusal)?;
    drop(decoder);
    if n_channels == 4 {
        rgba_to_rgb(&mut pixels);
    }
    if size == picture.size {
        return Ok(pixels);
    }
    let mut canvas = zeroed_bytes(3 * size.width * size.height)?;
    canvas.fill(parts.around);
    for (y, line) in pixels.chunks_exact(3 * picture.size.width).enumerate() {
        let at = 3 * ((parts.top + y) * size.width + parts.left);
        canvas[at..at + line.len()].copy_from_slice(line);
    }
    Ok(canvas)
}

fn refusal(error: DecodingError) -> PictureError {
    match error {
        DecodingError::IoError(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            cut_off()
        }
        error => PictureError::damaged(FORMAT, error),
    }
}
