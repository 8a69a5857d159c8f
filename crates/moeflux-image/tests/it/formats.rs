//! Every format and variant against the pixels that Pillow 13 reads.

use moeflux_image::{DecodeLimits, Picture, Size, picture_size};

use crate::data::{bytes, picture, sha256, text};

/// JPEG decoders round differently: the most levels, and in how many of 1000 samples. Four
/// samples of half-size chroma are interpolated by other sums than libjpeg-turbo's.
const CLOSE: (u8, usize) = (7, 300);

fn assert_close(name: &str, found: &Picture, expected: &Picture) {
    assert_eq!(found.size(), expected.size(), "{name}");
    let levels = found.rgb().iter().zip(expected.rgb());
    let differences: Vec<u8> = levels.map(|(a, b)| a.abs_diff(*b)).collect();
    let most = differences.iter().max().copied().unwrap_or(0);
    let n_different = differences.iter().filter(|d| **d > 0).count();
    let per_mille = 1000 * n_different / differences.len();
    assert!(most <= CLOSE.0 && per_mille <= CLOSE.1, "{name}: {most} levels, {per_mille}/1000");
}

#[test]
fn pixels_are_those_of_the_reference() {
    let mut faults = Vec::new();
    for line in text("formats/table.txt").lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let name = format!("formats/{}", fields[0]);
        let file = bytes(&name);
        let decoded = Picture::decode(&file, &DecodeLimits::default());
        let Ok(found) = decoded else {
            faults.push(format!("{name}: {}", decoded.expect_err("refused")));
            continue;
        };
        let size = picture_size(&file, &DecodeLimits::default()).expect("a size");
        assert_eq!(size, found.size(), "{name}: the size of the header");
        let number = |field: &str| field.parse::<usize>().expect("a number");
        let size = Size { width: number(fields[1]), height: number(fields[2]) };
        if found.size() != size {
            faults.push(format!("{name}: {:?} for {size:?}", found.size()));
        } else if fields[3] == "close" {
            assert_close(&name, &found, &picture(&format!("{name}.expected.png")));
        } else if sha256(found.rgb()) != fields[3] {
            faults.push(format!("{name}: other pixels"));
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn the_limits_are_those_of_the_header() {
    let file = bytes("odd.png");
    let limits = DecodeLimits::default();
    let refusal = |limits| {
        let error = Picture::decode(&file, &limits).expect_err("a refusal");
        assert_eq!(picture_size(&file, &limits).err(), Some(error.clone()));
        error.to_string()
    };
    assert!(refusal(DecodeLimits { side: 82, ..limits }).contains("83 x 61"));
    assert!(refusal(DecodeLimits { pixels: 83 * 61 - 1, ..limits }).contains("83 x 61"));
    assert!(refusal(DecodeLimits { file_bytes: 100, ..limits }).contains("at most 100"));
    let limits = DecodeLimits { memory_bytes: 10_000, ..limits };
    let error = Picture::decode(&file, &limits).expect_err("too little memory");
    assert!(error.to_string().contains("at most 10000 are allowed"), "{error}");
    let exact = DecodeLimits {
        side: 83,
        pixels: 83 * 61,
        file_bytes: file.len(),
        ..DecodeLimits::default()
    };
    assert!(Picture::decode(&file, &exact).is_ok());
}
