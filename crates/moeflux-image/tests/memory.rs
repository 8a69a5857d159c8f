//! The memory of decoding against the formulas of `DecodeLimits`: every byte that is allocated counts,
//! whether it is freed again or not.
//! Alone in its program, since the counter is that of the process.

use std::alloc::System;

use moeflux_image::{DecodeLimits, Picture, PictureError};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[path = "it/data.rs"]
#[expect(dead_code, reason = "the other tests use the rest")]
mod data;

#[path = "made/mod.rs"]
#[expect(dead_code, reason = "the other tests use the rest")]
mod made;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The bounds that decoding checks, one after another: each is found by allowing no more than the one
/// before.
fn bounds(file: &[u8]) -> Vec<usize> {
    let mut bounds = Vec::new();
    let mut memory_bytes = 0;
    loop {
        let limits = DecodeLimits { memory_bytes, ..Default::default() };
        match Picture::decode(file, &limits) {
            Err(PictureError::TooMuchMemory { needed, .. }) => bounds.push(needed),
            _ => return bounds,
        }
        memory_bytes = bounds[bounds.len() - 1];
    }
}

fn large_png(width: u32, height: u32) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    for y in 0..height {
        let row: Vec<u8> =
            (0..=8 * width).map(|x| if x == 0 { 0 } else { (x * y) as u8 }).collect();
        encoder.write_all(&row).expect("a vector grows");
    }
    let rows = encoder.finish().expect("a vector grows");
    made::png(&[(b"IHDR", &made::png_header(width, height, 16, 6)), (b"IDAT", &rows)])
}

/// Files whose headers claim more pixels than their codes have: decoders take the memory all the same.
fn enlarged() -> Vec<(String, Vec<u8>)> {
    const NAMES: [&str; 8] = [
        "jpeg-444.jpg",
        "jpeg-422.jpg",
        "jpeg-420.jpg",
        "jpeg-444-progressive.jpg",
        "jpeg-gray-progressive.jpg",
        "jpeg-cmyk.jpg",
        "webp-lossy.webp",
        "gif-interlaced.gif",
    ];
    const SIZES: [(u16, u16); 2] = [(1600, 1200), (9000, 3)];
    let mut files = Vec::new();
    for (name, (width, height)) in NAMES.iter().flat_map(|name| SIZES.map(|size| (name, size))) {
        let mut file = data::bytes(&format!("formats/{name}"));
        let big = [height.to_be_bytes(), width.to_be_bytes()].concat();
        let little = [width.to_le_bytes(), height.to_le_bytes()].concat();
        if name.ends_with("jpg") {
            let segments = made::jpeg_segments(&file);
            let frame = segments.iter().find(|s| matches!(s.marker, 0xc0 | 0xc2)).expect("a frame");
            let at = frame.range.start + 5;
            file[at..at + 4].copy_from_slice(&big);
        } else if name.ends_with("webp") {
            file[26..30].copy_from_slice(&little);
        } else {
            // The screen, and the frame after a palette of eight colours.
            file[6..10].copy_from_slice(&little);
            file[13 + 24 + 5..13 + 24 + 9].copy_from_slice(&little);
        }
        files.push((format!("{name} as {width} x {height}"), file));
    }
    files
}

#[test]
fn allocations_stay_below_the_formula() {
    let mut files: Vec<(String, Vec<u8>)> = data::text("formats/table.txt")
        .lines()
        .map(|line| format!("formats/{}", line.split(' ').next().unwrap_or_default()))
        .map(|name| (name.clone(), data::bytes(&name)))
        .collect();
    files.push((String::from("600 x 500 of 16 bits"), large_png(600, 500)));
    files.push((String::from("3000 x 2 of 16 bits"), large_png(3000, 2)));
    files.push((String::from("100 groups of codes"), made::lossless_groups(100)));
    files.push((String::from("3000 groups of codes"), made::lossless_groups(3000)));
    files.extend(enlarged());
    // A partition of a lossy picture claims more bytes than the file has.
    files.push((String::from("claim.webp"), data::bytes("claim.webp")));
    for (name, file) in files {
        let bounds = bounds(&file);
        let Some((most, before)) = bounds.split_last() else { continue };
        // Refused at the last bound: what was taken until then is free before decoding begins.
        let looking = allocated(&file, most - 1) - before.iter().sum::<usize>();
        // Each bound is tried once, by an allocation of that size.
        let tried: usize = bounds.iter().sum();
        let taken = allocated(&file, usize::MAX).saturating_sub(tried + looking);
        assert!(looking <= *most, "{name}: {looking} bytes to find the bound {most}");
        assert!(taken <= *most, "{name}: {taken} bytes, the formula says {most}");
    }
}

/// Bytes that decoding allocates with this limit.
fn allocated(file: &[u8], memory_bytes: usize) -> usize {
    let limits = DecodeLimits { memory_bytes, ..Default::default() };
    let region = Region::new(ALLOCATOR);
    let decoded = Picture::decode(file, &limits);
    let allocated = region.change().bytes_allocated;
    drop(decoded);
    allocated
}
