//! PNG: its chunks, and the pixels of its rows.

use std::io::Cursor;

use png::{Decoder, DecodingError, Limits, Reader, Transformations};

use super::bytes::Bytes;
use super::exif::Orientation;
use super::stored::Stored;
use super::white::over_white;
use crate::error::PictureError;
use crate::format::PictureFormat;
use crate::limits::DecodeLimits;
use crate::memory::{reserved_bytes, try_room, zeroed_bytes};
use crate::size::Size;

const FORMAT: PictureFormat = PictureFormat::Png;
pub(super) const SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";

/// Length, name and checksum.
const CHUNK_FRAME: usize = 12;

/// The chunks that the pixels of the first picture depend on. Text, profiles, gamma and the frames of
/// animations are in others.
const KEPT: [&[u8; 4]; 5] = [b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"];

/// Columns and rows of the passes of an interlaced picture: first column, first row, and the steps.
const PASSES: [(usize, usize, usize, usize); 7] = [
    (0, 0, 8, 8),
    (4, 0, 8, 8),
    (0, 4, 4, 8),
    (2, 0, 4, 4),
    (0, 2, 2, 4),
    (1, 0, 2, 2),
    (0, 1, 1, 2),
];
const NOT_INTERLACED: [(usize, usize, usize, usize); 1] = [(0, 0, 1, 1)];

#[derive(Debug)]
pub(super) struct Parts<'a> {
    file: &'a [u8],
    is_interlaced: bool,
}

struct Chunk<'a> {
    name: &'a [u8],
    content: &'a [u8],
    /// With its length, name and checksum.
    whole: &'a [u8],
}

fn next_chunk<'a>(bytes: &mut Bytes<'a>) -> Result<Chunk<'a>, PictureError> {
    let rest = bytes.rest();
    let chunk = |bytes: &mut Bytes<'a>| {
        let len = usize::try_from(bytes.u32_be()?).ok()?;
        let (name, content) = (bytes.take(4)?, bytes.take(len)?);
        bytes.take(4)?;
        Some(Chunk { name, content, whole: rest.get(..len + CHUNK_FRAME)? })
    };
    chunk(bytes).ok_or(PictureError::CutOff { format: FORMAT })
}

pub(super) fn stored(file: &[u8]) -> Result<Stored<Parts<'_>>, PictureError> {
    let mut bytes = Bytes::new(file.get(SIGNATURE.len()..).unwrap_or_default());
    let first = next_chunk(&mut bytes)?;
    let (size, is_interlaced) =
        header(&first).ok_or_else(|| PictureError::damaged(FORMAT, "it has no header"))?;
    let mut orientation = Orientation::UPRIGHT;
    loop {
        let chunk = next_chunk(&mut bytes)?;
        match chunk.name {
            b"eXIf" => orientation = Orientation::of_exif(chunk.content),
            b"IEND" => break,
            _ => {}
        }
    }
    let parts = Parts { file, is_interlaced };
    Ok(Stored { size, orientation, parts })
}

/// Size and interlacing of the header.
fn header(chunk: &Chunk<'_>) -> Option<(Size, bool)> {
    let mut content = Bytes::new(chunk.content);
    let (width, height) = (content.u32_be()?, content.u32_be()?);
    let [_depth, _colours, _compression, _filter, interlacing] = content.array()?;
    let is_whole = chunk.name == b"IHDR" && content.rest().is_empty();
    let size = Size { width: usize::try_from(width).ok()?, height: usize::try_from(height).ok()? };
    is_whole.then_some((size, interlacing == 1))
}

/// The kept chunks as a file of their own.
fn kept(file: &[u8]) -> Result<Vec<u8>, PictureError> {
    let mut kept = reserved_bytes(file.len())?;
    kept.extend_from_slice(SIGNATURE);
    let mut bytes = Bytes::new(file.get(SIGNATURE.len()..).unwrap_or_default());
    loop {
        let chunk = next_chunk(&mut bytes)?;
        if KEPT.iter().any(|name| chunk.name == *name) {
            kept.extend_from_slice(chunk.whole);
        }
        if chunk.name == b"IEND" {
            return Ok(kept);
        }
    }
}

/// Memory of decoding, as [`DecodeLimits`] has it.
fn memory(size: Size, file_bytes: usize) -> (u64, usize) {
    let rows = 64 * size.width + (1 << 20);
    ((file_bytes + rows) as u64 + 3 * size.width as u64 * size.height as u64, rows)
}

pub(super) fn decode(
    size: Size,
    parts: &Parts<'_>,
    limits: &DecodeLimits,
) -> Result<Vec<u8>, PictureError> {
    let (needed, row_memory) = memory(size, parts.file.len());
    limits.check_memory(needed)?;
    try_room(needed)?;
    let file = kept(parts.file)?;
    let mut decoder = Decoder::new_with_limits(Cursor::new(&file), Limits { bytes: row_memory });
    decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
    let mut reader = decoder.read_info().map_err(refusal)?;
    let mut rgb = zeroed_bytes(3 * size.width * size.height)?;
    let passes: &[_] = if parts.is_interlaced { &PASSES } else { &NOT_INTERLACED };
    for &(first_column, first_row, column_step, row_step) in passes {
        if first_column >= size.width {
            continue;
        }
        for y in (first_row..size.height).step_by(row_step) {
            let at = 3 * (y * size.width + first_column);
            let line = &mut rgb[at..3 * (y + 1) * size.width];
            read_row(&mut reader, line, column_step)?;
        }
    }
    Ok(rgb)
}

/// Decodes the next row into every `step`th pixel of `line`.
fn read_row(
    reader: &mut Reader<Cursor<&Vec<u8>>>,
    line: &mut [u8],
    step: usize,
) -> Result<(), PictureError> {
    let (colours, _) = reader.output_color_type();
    let row = reader.next_interlaced_row().map_err(refusal)?;
    let row = row.ok_or(PictureError::CutOff { format: FORMAT })?;
    let pixels = row.data().chunks_exact(colours.samples());
    if pixels.len() != (line.len() / 3).div_ceil(step) {
        return Err(PictureError::damaged(FORMAT, "a row has another length"));
    }
    for (to, from) in line.chunks_mut(3 * step).zip(pixels) {
        to[..3].copy_from_slice(&match *from {
            [gray] => [gray; 3],
            [gray, alpha] => [over_white(gray, alpha); 3],
            [red, green, blue] => [red, green, blue],
            [red, green, blue, alpha] => [red, green, blue].map(|c| over_white(c, alpha)),
            _ => return Err(PictureError::damaged(FORMAT, "its colours are unknown")),
        });
    }
    Ok(())
}

fn refusal(error: DecodingError) -> PictureError {
    match error {
        DecodingError::IoError(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            PictureError::CutOff { format: FORMAT }
        }
        error => PictureError::damaged(FORMAT, error),
    }
}
