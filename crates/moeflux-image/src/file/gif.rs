//! GIF: its blocks up to the first frame, and the frame on its screen.

use gif::{ColorOutput, DecodeOptions, DecodingError, MemoryLimit};

use super::bytes::Bytes;
use super::exif::Orientation;
use super::stored::Stored;
use crate::error::PictureError;
use crate::format::PictureFormat;
use crate::limits::DecodeLimits;
use crate::memory::{reserved_bytes, try_room, zeroed_bytes};
use crate::size::Size;

const FORMAT: PictureFormat = PictureFormat::Gif;

const EXTENSION: u8 = 0x21;
const FRAME: u8 = 0x2c;
const END: u8 = 0x3b;
/// The extension that names a transparent colour.
const CONTROL: u8 = 0xf9;

/// A flag of screens and frames: a palette follows, of 2^(n + 1) colours for the lowest three bits n.
const HAS_PALETTE: u8 = 0x80;
const IS_INTERLACED: u8 = 0x40;

#[derive(Debug)]
pub(super) struct Parts<'a> {
    /// Where the frame is on the screen.
    left: usize,
    top: usize,
    frame: Size,
    is_interlaced: bool,
    /// Colours of three bytes; none where the file has no palette.
    palette: Option<&'a [u8]>,
    transparent: Option<u8>,
    /// The size of the codes and the blocks of codes, with the empty one at their end.
    codes: &'a [u8],
}

pub(super) fn stored(file: &[u8]) -> Result<Stored<Parts<'_>>, PictureError> {
    let parsed = blocks(file).ok_or(PictureError::CutOff { format: FORMAT })?;
    parsed.ok_or_else(|| PictureError::damaged(FORMAT, "it has no frame"))
}

/// The first frame: the outer `None` where the file ends before it does, the inner one where there is
/// none.
fn blocks(file: &[u8]) -> Option<Option<Stored<Parts<'_>>>> {
    let mut bytes = Bytes::new(file);
    bytes.take(b"GIF89a".len())?;
    let (width, height) = (bytes.u16_le()?, bytes.u16_le()?);
    let [flags, _background, _aspect] = bytes.array()?;
    let global = palette(&mut bytes, flags)?;
    let mut transparent = None;
    loop {
        match bytes.u8()? {
            EXTENSION => {
                let label = bytes.u8()?;
                let content = bytes.rest();
                skip_blocks(&mut bytes)?;
                if let (CONTROL, [4, flags, _, _, index, ..]) = (label, content) {
                    transparent = (flags & 1 == 1).then_some(*index);
                }
            }
            FRAME => break,
            _ => return Some(None),
        }
    }
    let (left, top) = (usize::from(bytes.u16_le()?), usize::from(bytes.u16_le()?));
    let frame = Size { width: usize::from(bytes.u16_le()?), height: usize::from(bytes.u16_le()?) };
    let flags = bytes.u8()?;
    let palette = palette(&mut bytes, flags)?.or(global);
    let codes = bytes.rest();
    bytes.u8()?;
    skip_blocks(&mut bytes)?;
    let codes = &codes[..codes.len() - bytes.rest().len()];
    // A frame that does not fit makes the picture larger, as in Pillow.
    let size = Size {
        width: usize::from(width).max(left + frame.width),
        height: usize::from(height).max(top + frame.height),
    };
    let is_interlaced = flags & IS_INTERLACED != 0;
    let parts = Parts { left, top, frame, is_interlaced, palette, transparent, codes };
    let orientation = Orientation::UPRIGHT;
    Some(Some(Stored { size, orientation, parts }))
}

/// The palette that follows flags which name one; the outer `None` where it is cut off.
fn palette<'a>(bytes: &mut Bytes<'a>, flags: u8) -> Option<Option<&'a [u8]>> {
    if flags & HAS_PALETTE == 0 {
        return Some(None);
    }
    bytes.take(3 << ((flags & 7) + 1)).map(Some)
}

/// Skips blocks up to the empty one.
fn skip_blocks(bytes: &mut Bytes<'_>) -> Option<()> {
    loop {
        let len = bytes.u8()?;
        if len == 0 {
            return Some(());
        }
        bytes.take(usize::from(len))?;
    }
}

/// The frame's codes as a file of their own. Its pixels leave the decoder as indices, so that the
/// colours of the palette do not matter there.
fn kept(parts: &Parts<'_>) -> Result<Vec<u8>, PictureError> {
    const N_COLOURS: usize = 256;
    let side = |side: usize| u16::try_from(side).unwrap_or(u16::MAX).to_le_bytes();
    let size = [side(parts.frame.width), side(parts.frame.height)].concat();
    let mut kept = reserved_bytes(parts.codes.len() + 3 * N_COLOURS + 32)?;
    kept.extend_from_slice(b"GIF89a");
    kept.extend_from_slice(&size);
    kept.extend_from_slice(&[HAS_PALETTE | 7, 0, 0]);
    kept.resize(kept.len() + 3 * N_COLOURS, 0);
    kept.extend_from_slice(&[FRAME, 0, 0, 0, 0]);
    kept.extend_from_slice(&size);
    kept.push(if parts.is_interlaced { IS_INTERLACED } else { 0 });
    kept.extend_from_slice(parts.codes);
    kept.push(END);
    Ok(kept)
}

/// Memory of decoding, as [`DecodeLimits`] has it.
fn memory(size: Size, parts: &Parts<'_>) -> u64 {
    let pixels = |size: Size| size.width as u64 * size.height as u64;
    parts.codes.len() as u64 + 3 * pixels(size) + pixels(parts.frame) + (1 << 20)
}

pub(super) fn decode(
    size: Size,
    parts: &Parts<'_>,
    limits: &DecodeLimits,
) -> Result<Vec<u8>, PictureError> {
    let needed = memory(size, parts);
    limits.check_memory(needed)?;
    try_room(needed)?;
    let n_pixels = parts.frame.width * parts.frame.height;
    let mut rgb = zeroed_bytes(3 * size.width * size.height)?;
    let colours = colours(parts);
    // What the frame leaves free shows the transparent colour, or else the first.
    let around = parts.transparent.unwrap_or(0);
    rgb.as_chunks_mut::<3>().0.fill(colours[usize::from(around)]);
    if n_pixels == 0 {
        return Ok(rgb);
    }
    let file = kept(parts)?;
    let mut options = DecodeOptions::new();
    options.set_color_output(ColorOutput::Indexed);
    options.set_memory_limit(MemoryLimit::Unlimited);
    let mut decoder = options.read_info(file.as_slice()).map_err(refusal)?;
    let frame = decoder.next_frame_info().map_err(refusal)?;
    if frame.is_none_or(|frame| usize::from(frame.width) != parts.frame.width) {
        return Err(PictureError::damaged(FORMAT, "it has no frame"));
    }
    let mut indices = zeroed_bytes(n_pixels)?;
    decoder.read_into_buffer(&mut indices).map_err(refusal)?;
    for (y, line) in indices.chunks_exact(parts.frame.width).enumerate() {
        let at = (parts.top + y) * size.width + parts.left;
        let pixels = &mut rgb[3 * at..3 * (at + parts.frame.width)];
        for (pixel, index) in pixels.as_chunks_mut::<3>().0.iter_mut().zip(line) {
            *pixel = colours[usize::from(*index)];
        }
    }
    Ok(rgb)
}

/// What each index shows: its colour, white where it is transparent, black beyond the palette, and
/// its own level of gray where there is no palette.
fn colours(parts: &Parts<'_>) -> [[u8; 3]; 256] {
    let mut colours = [[0; 3]; 256];
    for (i, colour) in colours.iter_mut().enumerate() {
        let stored = parts.palette.map(|palette| palette.as_chunks::<3>().0);
        *colour = match stored {
            Some(stored) => stored.get(i).copied().unwrap_or_default(),
            None => [i as u8; 3],
        };
    }
    if let Some(index) = parts.transparent {
        colours[usize::from(index)] = [255; 3];
    }
    colours
}

fn refusal(error: DecodingError) -> PictureError {
    match error {
        DecodingError::UnexpectedEof => PictureError::CutOff { format: FORMAT },
        error => PictureError::damaged(FORMAT, error),
    }
}
