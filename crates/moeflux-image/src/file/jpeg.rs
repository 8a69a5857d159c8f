//! JPEG: its segments, its scans, and its colours.

use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;
use zune_jpeg::errors::DecodeErrors;

use super::bytes::Bytes;
use super::exif::Orientation;
use super::stored::Stored;
use super::white::divide_by_255;
use crate::error::PictureError;
use crate::format::PictureFormat;
use crate::limits::DecodeLimits;
use crate::memory::{reserved_bytes, try_room, zeroed_bytes};
use crate::size::Size;

const FORMAT: PictureFormat = PictureFormat::Jpeg;
pub(super) const SIGNATURE: &[u8] = &[0xff, START, 0xff];

const START: u8 = 0xd8;
const END: u8 = 0xd9;
const SCAN: u8 = 0xda;

/// What a marker begins.
#[derive(Debug, PartialEq, Eq)]
enum Kind {
    /// A marker without content.
    Alone,
    End,
    Scan,
    /// A frame that is decoded: sequential with or without the extended range, or progressive.
    Frame,
    /// A frame of another process: lossless, hierarchical, or with arithmetic codes.
    OtherFrame,
    Exif,
    Adobe,
    /// Tables and intervals, which pixels depend on.
    Tables,
    /// Applications' data and comments.
    Other,
}

impl Kind {
    fn of(marker: u8) -> Self {
        match marker {
            0x01 | 0xd0..=0xd8 => Self::Alone,
            END => Self::End,
            SCAN => Self::Scan,
            0xc0..=0xc2 => Self::Frame,
            0xc4 | 0xdb | 0xdd => Self::Tables,
            0xc3..=0xcf | 0xde => Self::OtherFrame,
            0xe1 => Self::Exif,
            0xee => Self::Adobe,
            _ => Self::Other,
        }
    }
}

/// A marker with what follows it up to the next.
struct Segment<'a> {
    kind: Kind,
    content: &'a [u8],
    /// From the marker to the end of the content; of a scan, to the end of its codes.
    whole: &'a [u8],
}

#[derive(Debug)]
pub(super) struct Parts<'a> {
    file: &'a [u8],
    colours: Colours,
    n_scans: usize,
}

/// How components become RGB, by the rules of libjpeg.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Colours {
    Gray,
    YCbCr,
    Rgb,
    Cmyk,
    Ycck,
}

/// The next segment. Bytes between segments are skipped, as libjpeg does.
fn next_segment<'a>(bytes: &mut Bytes<'a>) -> Result<Segment<'a>, PictureError> {
    segment(bytes).ok_or(PictureError::CutOff { format: FORMAT })
}

fn segment<'a>(bytes: &mut Bytes<'a>) -> Option<Segment<'a>> {
    let rest = bytes.rest();
    let before =
        rest.windows(2).position(|pair| pair[0] == 0xff && !matches!(pair[1], 0 | 0xff))?;
    bytes.take(before)?;
    let start = bytes.rest();
    let [_, marker] = bytes.array()?;
    let kind = Kind::of(marker);
    if matches!(kind, Kind::Alone | Kind::End) {
        return Some(Segment { kind, content: &[], whole: &start[..2] });
    }
    let len = usize::from(bytes.u16_be()?).checked_sub(2)?;
    let content = bytes.take(len)?;
    if kind == Kind::Scan {
        bytes.take(codes_len(bytes.rest())?)?;
    }
    let whole = &start[..start.len() - bytes.rest().len()];
    Some(Segment { kind, content, whole })
}

/// How long the codes of a scan are: up to a marker that is neither a stuffed zero nor a restart.
fn codes_len(bytes: &[u8]) -> Option<usize> {
    let is_end = |pair: &[u8]| pair[0] == 0xff && !matches!(pair[1], 0 | 0xd0..=0xd7 | 0xff);
    bytes.windows(2).position(is_end)
}

/// What the segments say.
#[derive(Default)]
struct Found<'a> {
    size: Option<Size>,
    component_ids: Vec<u8>,
    has_jfif: bool,
    adobe_transform: Option<u8>,
    exif: Option<&'a [u8]>,
    n_scans: usize,
}

pub(super) fn stored(file: &[u8], max_scans: usize) -> Result<Stored<Parts<'_>>, PictureError> {
    let mut bytes = Bytes::new(file);
    let mut found = Found::default();
    loop {
        let segment = next_segment(&mut bytes)?;
        let content = segment.content;
        match segment.kind {
            Kind::Frame => frame(content, &mut found)?,
            Kind::OtherFrame => {
                let what = "arithmetic codes, lossless or hierarchical frames";
                return Err(PictureError::unsupported(FORMAT, what));
            }
            Kind::Scan if found.size.is_none() => {
                return Err(PictureError::damaged(FORMAT, "a scan is before its frame"));
            }
            Kind::Scan => found.n_scans += 1,
            Kind::Exif if found.n_scans == 0 && content.starts_with(b"Exif\0\0") => {
                found.exif = found.exif.or(Some(content));
            }
            Kind::Adobe if content.starts_with(b"Adobe") => {
                found.adobe_transform = content.get(11).copied();
            }
            Kind::Other if content.starts_with(b"JFIF\0") => found.has_jfif = true,
            Kind::End => break,
            _ => {}
        }
        if found.n_scans > max_scans {
            return Err(PictureError::TooManyScans { limit: max_scans });
        }
    }
    let size = found.size.filter(|_| found.n_scans > 0);
    let size = size.ok_or_else(|| PictureError::damaged(FORMAT, "it has no picture"))?;
    let orientation = found.exif.map_or(Orientation::UPRIGHT, Orientation::of_exif);
    let parts = Parts { file, colours: colours(&found)?, n_scans: found.n_scans };
    Ok(Stored { size, orientation, parts })
}

fn frame(content: &[u8], found: &mut Found<'_>) -> Result<(), PictureError> {
    if found.size.is_some() {
        return Err(PictureError::damaged(FORMAT, "it has two frames"));
    }
    let mut bytes = Bytes::new(content);
    let mut read = || Some((bytes.u8()?, bytes.u16_be()?, bytes.u16_be()?, bytes.u8()?));
    let read = read().ok_or_else(|| PictureError::damaged(FORMAT, "its frame is too short"))?;
    let (precision, height, width, n_components) = read;
    if precision != 8 {
        let what = format!("{precision} bits a sample");
        return Err(PictureError::unsupported(FORMAT, what));
    }
    if !matches!(n_components, 1 | 3 | 4) {
        let what = format!("{n_components} components");
        return Err(PictureError::unsupported(FORMAT, what));
    }
    let components = bytes.rest().chunks_exact(3);
    if components.len() != usize::from(n_components) {
        return Err(PictureError::damaged(FORMAT, "its frame has another length"));
    }
    found.component_ids = components.map(|component| component[0]).collect();
    found.size = Some(Size { width: usize::from(width), height: usize::from(height) });
    Ok(())
}

fn colours(found: &Found<'_>) -> Result<Colours, PictureError> {
    let colours = match (found.component_ids.as_slice(), found.adobe_transform) {
        ([_], _) => Colours::Gray,
        ([_, _, _], _) if found.has_jfif => Colours::YCbCr,
        ([_, _, _], Some(0)) | ([b'R', b'G', b'B'], None) => Colours::Rgb,
        ([_, _, _], _) => Colours::YCbCr,
        ([_, _, _, _], Some(2)) => Colours::Ycck,
        ([_, _, _, _], _) => Colours::Cmyk,
        _ => return Err(PictureError::damaged(FORMAT, "it has no frame")),
    };
    Ok(colours)
}

impl Colours {
    /// Samples of a pixel that leave the decoder.
    fn n_channels(self) -> usize {
        if matches!(self, Self::Cmyk | Self::Ycck) { 4 } else { 3 }
    }

    /// The number by which Adobe's segment names how components were transformed.
    fn adobe_transform(self) -> u8 {
        match self {
            Self::Rgb | Self::Cmyk => 0,
            Self::Gray | Self::YCbCr => 1,
            Self::Ycck => 2,
        }
    }

    fn decoded(self) -> ColorSpace {
        match self {
            Self::Gray | Self::YCbCr | Self::Rgb => ColorSpace::RGB,
            Self::Cmyk => ColorSpace::CMYK,
            Self::Ycck => ColorSpace::YCCK,
        }
    }
}

/// Tables, frame and scans as a file of their own, whose colours an Adobe segment names.
fn kept(parts: &Parts<'_>) -> Result<Vec<u8>, PictureError> {
    let adobe = [&[0xff, START, 0xff, 0xee, 0, 14], b"Adobe".as_slice(), &[0, 100, 0, 0, 0, 0]];
    let mut kept = reserved_bytes(parts.file.len() + 32)?;
    adobe.iter().for_each(|bytes| kept.extend_from_slice(bytes));
    kept.push(parts.colours.adobe_transform());
    let mut bytes = Bytes::new(parts.file);
    loop {
        let segment = next_segment(&mut bytes)?;
        match segment.kind {
            Kind::Frame | Kind::Scan | Kind::Tables => kept.extend_from_slice(segment.whole),
            Kind::End => {
                kept.extend_from_slice(segment.whole);
                return Ok(kept);
            }
            _ => {}
        }
    }
}

/// Memory of decoding, as [`DecodeLimits`] has it: with several scans the coefficients of all blocks
/// are kept, two bytes each.
fn memory(size: Size, parts: &Parts<'_>) -> u64 {
    let (width, height) = (size.width as u64, size.height as u64);
    let n_channels = parts.colours.n_channels() as u64;
    let mut needed = parts.file.len() as u64 + n_channels * width * height;
    if parts.n_scans > 1 {
        needed += 2 * n_channels * (width + 32) * (height + 32);
    }
    needed + 1536 * (width + 32) + (1 << 20)
}

pub(super) fn decode(
    size: Size,
    parts: &Parts<'_>,
    limits: &DecodeLimits,
) -> Result<Vec<u8>, PictureError> {
    let needed = memory(size, parts);
    limits.check_memory(needed)?;
    try_room(needed)?;
    let file = kept(parts)?;
    let options = DecoderOptions::new_safe()
        .set_strict_mode(false)
        .set_max_width(size.width)
        .set_max_height(size.height)
        .jpeg_set_max_scans(limits.jpeg_scans)
        .jpeg_set_out_colorspace(parts.colours.decoded());
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(&file), options);
    decoder.decode_headers().map_err(refusal)?;
    let n_bytes = parts.colours.n_channels() * size.width * size.height;
    if decoder.output_buffer_size() != Some(n_bytes) {
        return Err(PictureError::damaged(FORMAT, "its headers disagree"));
    }
    let mut pixels = zeroed_bytes(n_bytes)?;
    decoder.decode_into(&mut pixels).map_err(refusal)?;
    match parts.colours {
        Colours::Gray | Colours::YCbCr | Colours::Rgb => {}
        Colours::Cmyk => to_rgb(&mut pixels, |[c, m, y, _]| [c, m, y]),
        Colours::Ycck => to_rgb(&mut pixels, cmy_of_ycc),
    }
    Ok(pixels)
}

/// Pixels of four bytes to RGB, in place. Files of four inks hold 255 minus the ink, as Adobe's
/// programs write them and Pillow reads them; `cmy` finds the stored three coloured ones.
fn to_rgb(pixels: &mut Vec<u8>, cmy: impl Fn([u8; 4]) -> [u8; 3]) {
    let n_pixels = pixels.len() / 4;
    for i in 0..n_pixels {
        let stored = [0, 1, 2, 3].map(|channel| pixels[4 * i + channel]);
        let light = stored[3];
        let rgb =
            cmy(stored).map(|ink| light - divide_by_255(u32::from(255 - ink) * u32::from(light)));
        pixels[3 * i..3 * i + 3].copy_from_slice(&rgb);
    }
    pixels.truncate(3 * n_pixels);
}

/// The coloured inks of a pixel in YCCK: 255 minus the RGB of its first three samples, by the integers
/// of libjpeg (16 bits of fraction).
fn cmy_of_ycc([y, cb, cr, _]: [u8; 4]) -> [u8; 3] {
    const HALF: i32 = 1 << 15;
    let (y, cb, cr) = (i32::from(y), i32::from(cb) - 128, i32::from(cr) - 128);
    let red = y + ((91_881 * cr + HALF) >> 16);
    let green = y + ((-22_554 * cb - 46_802 * cr + HALF) >> 16);
    let blue = y + ((116_130 * cb + HALF) >> 16);
    [red, green, blue].map(|light| 255 - light.clamp(0, 255) as u8)
}

fn refusal(error: DecodeErrors) -> PictureError {
    match error {
        DecodeErrors::ExhaustedData => PictureError::CutOff { format: FORMAT },
        error => PictureError::damaged(FORMAT, format!("{error}")),
    }
}
