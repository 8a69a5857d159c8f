//! Files that are cut, damaged, or lie about what they hold: each is a picture or one line.

use std::io::Write;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::ZlibEncoder;
use moeflux_image::{DecodeLimits, Picture, PictureError, picture_size};

use crate::data::bytes;

#[path = "../made/mod.rs"]
mod made;

use made::{Webp, gif, jpeg_segments, png, png_header};

/// What decoding says, which is one line if it is a refusal, in reasonable time.
#[track_caller]
fn outcome(file: &[u8]) -> Result<Picture, String> {
    let started = Instant::now();
    let limits = DecodeLimits { pixels: 1 << 22, memory_bytes: 256 << 20, ..Default::default() };
    let outcome = Picture::decode(file, &limits);
    // Far more than any needs: a decoder that does not end would take as long as it likes.
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
    let size = picture_size(file, &limits);
    outcome.inspect(|picture| assert_eq!(size, Ok(picture.size()))).map_err(|error| {
        let line = error.to_string();
        assert!(line.lines().count() == 1 && line.len() < 300, "{line:?}");
        assert!(!line.chars().any(char::is_control), "{line:?}");
        line
    })
}

#[track_caller]
fn refused(file: &[u8], part: &str) {
    let line = outcome(file).expect_err("a refusal");
    assert!(line.contains(part), "{line}");
}

fn compressed(bytes: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    bytes.into_iter().for_each(|bytes| encoder.write_all(&bytes).expect("a vector grows"));
    encoder.finish().expect("a vector grows")
}

#[test]
fn cut_files_are_refused_at_every_byte() {
    // What is whole after the given number of bytes may be read: a GIF needs no trailer.
    let files = [
        ("tiny.png", 0),
        ("palette.png", 0),
        ("progressive.jpg", 0),
        ("formats/jpeg-8.jpg", 0),
        ("formats/gif-transparent.gif", 1),
        ("formats/gif-two.gif", 40),
        ("formats/webp-lossy.webp", 0),
        ("formats/webp-lossy-alpha.webp", 0),
        ("formats/webp-exif-6.webp", 0),
        ("formats/webp-animated.webp", 0),
        ("formats/apng.png", 0),
    ];
    for (name, n_optional) in files {
        let file = bytes(name);
        assert!(outcome(&file).is_ok(), "{name}");
        for len in 0..file.len() {
            let cut = outcome(&file[..len]);
            assert!(cut.is_err() || len + n_optional >= file.len(), "{name}: {len} bytes");
        }
        let mut longer = file.clone();
        longer.extend_from_slice(&[0xa5; 100]);
        assert_eq!(outcome(&longer), outcome(&file), "{name}: bytes after the end");
    }
}

#[test]
fn headers_that_claim_too_much_are_refused_before_memory_is_taken() {
    let empty = compressed([]);
    refused(
        &png(&[(b"IHDR", &png_header(60_000, 60_000, 8, 2)), (b"IDAT", &empty)]),
        "60000 x 60000",
    );
    refused(&png(&[(b"IHDR", &png_header(4000, 4000, 8, 2)), (b"IDAT", &empty)]), "4000 x 4000");
    refused(
        &png(&[(b"IHDR", &png_header(20_000, 1, 8, 2)), (b"IDAT", &empty)]),
        "20000 x 1 pixels",
    );
    refused(&png(&[(b"IHDR", &png_header(u32::MAX, u32::MAX, 16, 6))]), "4294967295");
    refused(&png(&[(b"IHDR", &png_header(0, 7, 8, 2)), (b"IDAT", &empty)]), "0 x 7");
    refused(&gif((65_535, 65_535), (0, 0, 1, 1), &[2, 2, 0x44, 1, 0]), "65535 x 65535");
    refused(&gif((1, 1), (65_535, 65_535, 9, 9), &[2, 2, 0x44, 1, 0]), "65544 x 65544");
    refused(&gif((1, 1), (0, 0, 9000, 9000), &[2, 2, 0x44, 1, 0]), "9000 x 9000");
    for (width, height) in [(0xffff_u16, 0xffff_u16), (5000, 5000), (0, 5), (5, 0)] {
        let mut file = bytes("formats/jpeg-8.jpg");
        let frame = jpeg_segments(&file).into_iter().find(|s| s.marker == 0xc0).expect("a frame");
        let at = frame.range.start + 5;
        file[at..at + 2].copy_from_slice(&height.to_be_bytes());
        file[at + 2..at + 4].copy_from_slice(&width.to_be_bytes());
        refused(&file, &format!("{width} x {height}"));
    }
    let huge = Webp::extended(0, (1 << 24, 1 << 24)).chunk(b"VP8L", &[0x2f, 0, 0, 0, 0]).file();
    refused(&huge, "16777216 x 16777216");
    let flat = Webp::simple(b"VP8L", &[0x2f, 0xff, 0xff, 0xff, 0x0f]);
    refused(&flat, "16384 x 16384");
}

#[test]
fn bombs_end_in_bounded_memory_and_time() {
    let zeros = compressed((0..64).map(|_| vec![0; 1 << 20]));
    let small = png(&[(b"IHDR", &png_header(100, 100, 8, 2)), (b"IDAT", &zeros), (b"IEND", &[])]);
    assert_eq!(outcome(&small).map(|picture| picture.width()), Ok(100));
    let text = [b"k\0\0".as_slice(), &zeros].concat();
    let rows = compressed([vec![0; 4]]);
    let header = png_header(1, 1, 8, 2);
    for name in [b"zTXt", b"iCCP", b"iTXt"] {
        let chunks =
            [(b"IHDR", header.as_slice()), (name, &text), (b"IDAT", &rows), (b"IEND", &[])];
        assert!(outcome(&png(&chunks)).is_ok());
    }
    let many: Vec<_> = [(b"IHDR", header.as_slice())]
        .into_iter()
        .chain((0..50_000).map(|_| (b"tEXt", b"a\0b".as_slice())))
        .chain([(b"IDAT", rows.as_slice()), (b"IEND", &[])])
        .collect();
    assert!(outcome(&png(&many)).is_ok());
}

#[test]
fn scans_of_a_jpeg_are_counted() {
    let file = bytes("progressive.jpg");
    let segments = jpeg_segments(&file);
    let last = segments.iter().rfind(|segment| segment.marker == 0xda).expect("a scan");
    let with_scans = |n: usize| {
        let (head, scan) = (&file[..last.range.start], &file[last.range.clone()]);
        [head, &scan.repeat(n), &[0xff, 0xd9]].concat()
    };
    assert!(outcome(&with_scans(1)).is_ok());
    refused(&with_scans(1000), "more than 100 scans");
    let limits = DecodeLimits { jpeg_scans: 3, ..Default::default() };
    let refusal = Picture::decode(&with_scans(1), &limits).expect_err("ten scans");
    assert_eq!(refusal, PictureError::TooManyScans { limit: 3 });
}

#[test]
fn metadata_does_not_reach_the_decoder_of_jpegs() {
    let file = bytes("formats/jpeg-444.jpg");
    let plain = outcome(&file).expect("a picture");
    let segment = |marker: u8, content: &[u8]| {
        let len = u16::try_from(content.len() + 2).expect("a short segment").to_be_bytes();
        [&[0xff, marker], len.as_slice(), content].concat()
    };
    let extended = [b"http://ns.adobe.com/xmp/extension/\0".as_slice(), &[b'0'; 40], b"x"].concat();
    let profile = [b"ICC_PROFILE\0\x01\xff".as_slice(), &[7; 100]].concat();
    for (marker, content) in
        [(0xe1, extended), (0xe2, profile), (0xfe, vec![0xff; 9]), (0xed, vec![])]
    {
        let many = segment(marker, &content).repeat(20_000);
        let longer = [&file[..2], &many, &file[2..]].concat();
        assert_eq!(outcome(&longer).as_ref(), Ok(&plain), "{marker:#x}");
    }
    // Bytes between segments are skipped.
    let first = jpeg_segments(&file)[0].range.end;
    let spaced = [&file[..first], &[0, 1, 2, 3], &file[first..]].concat();
    assert_eq!(outcome(&spaced).as_ref(), Ok(&plain));
}

#[test]
fn structures_that_contradict_themselves_are_refused() {
    let file = bytes("formats/jpeg-444.jpg");
    let segments = jpeg_segments(&file);
    let of = |marker: u8| &segments.iter().find(|s| s.marker == marker).expect("it").range;
    let frame = &file[of(0xc0).clone()];
    let two_frames = [&file[..of(0xc0).end], frame, &file[of(0xc0).end..]].concat();
    refused(&two_frames, "two frames");
    let no_frame = [&file[..of(0xc0).start], &file[of(0xc0).end..]].concat();
    refused(&no_frame, "before its frame");
    let mut other = file.clone();
    other[of(0xc0).start + 1] = 0xc9;
    refused(&other, "arithmetic");
    let mut deep = file.clone();
    deep[of(0xc0).start + 4] = 12;
    refused(&deep, "12 bits a sample");
    let no_tables = [&file[..of(0xc4).start], &file[of(0xc0).start..]].concat();
    assert!(outcome(&no_tables).is_err() || of(0xc4).start > of(0xc0).start);
    refused(&[&file[..2], &[0xff, 0xd9]].concat(), "no picture");
    refused(b"BM123456", "no PNG, JPEG, WebP or GIF");
    refused(b"", "no PNG");
    refused(&gif((3, 3), (0, 0, 3, 3), &[2, 1, 0x84, 0]), "GIF");
    refused(b"GIF89a\x01\0\x01\0\0\0\0;", "no frame");
    let rows = compressed([vec![0; 4]]);
    refused(&png(&[(b"IDAT", &rows), (b"IEND", &[])]), "no header");
    refused(&png(&[(b"IHDR", &png_header(1, 1, 8, 3)), (b"IDAT", &rows), (b"IEND", &[])]), "PNG");
    refused(&png(&[(b"IHDR", &png_header(9, 9, 8, 2)), (b"IDAT", &rows), (b"IEND", &[])]), "PNG");
    refused(&Webp::extended(0, (4, 4)).file(), "no picture");
    let lossy = bytes("formats/webp-lossy.webp");
    let outside = Webp::extended(0, (4, 4)).chunk(b"VP8 ", &lossy[20..]).file();
    refused(&outside, "does not fit");
}

#[test]
fn orientations_that_lie_mean_upright() {
    let plain = outcome(&bytes("tiny.png")).expect("a picture");
    let entry = |count: &[u8], tag: &[u8], value: &[u8]| {
        [b"II*\0\x08\0\0\0".as_slice(), count, tag, &[3, 0, 1, 0, 0, 0], value, &[8, 0, 0, 0]]
            .concat()
    };
    let good = entry(&[1, 0], &[0x12, 1], &[6, 0, 0, 0]);
    let itself = [&good[..4], &[0, 0, 0, 0], &good[8..]].concat();
    let beyond = [&good[..4], &[0xff; 4], &good[8..]].concat();
    let endless = entry(&[0xff, 0xff], &[0x13, 1], &[6, 0, 0, 0]);
    let large = entry(&[1, 0], &[0x12, 1], &[99, 0, 0, 0]);
    let file = bytes("tiny.png");
    let with = |exif: &[u8]| {
        let chunk = made::png_chunk(b"eXIf", exif);
        outcome(&[&file[..33], &chunk, &file[33..]].concat()).expect("a picture")
    };
    assert_eq!(with(&good).size().width, plain.height());
    for exif in [&itself, &beyond, &endless, &large, &good[..12].to_vec(), &Vec::new()] {
        assert_eq!(with(exif), plain);
    }
}

#[test]
fn tables_of_prefix_codes_are_counted() {
    let few = made::lossless_groups(100);
    let many = made::lossless_groups(65_536);
    // Either the decoder takes it, or its content is broken: it is not memory that is missing.
    assert!(!matches!(outcome(&few), Err(line) if line.contains("memory")));
    refused(&many, "bytes of memory, at most");
}
