//! Pictures through the processors of seven small models, against transformers 5.24.

use moeflux_image::{Frames, Picture, Processor};
use serde_json::Value;

use crate::data::{picture, sha256, text};

fn goldens() -> Value {
    serde_json::from_str(&text("goldens.json")).expect("goldens")
}

/// The picture with the pixels that the reference saw. JPEG decoders differ by some levels.
fn as_the_reference_saw(name: &str) -> Picture {
    let is_jpeg = name.ends_with(".jpg");
    picture(&if is_jpeg { format!("{name}.expected.png") } else { name.to_owned() })
}

fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[test]
fn decoded_pixels_are_equal() {
    for (name, golden) in goldens()["pictures"].as_object().expect("pictures") {
        let picture = as_the_reference_saw(name);
        let size = (golden["size"][0].as_u64(), golden["size"][1].as_u64());
        assert_eq!(size, (Some(picture.width() as u64), Some(picture.height() as u64)), "{name}");
        assert_eq!(sha256(picture.rgb()), golden["rgb"].as_str().expect("a hash"), "{name}");
    }
}

#[test]
fn jpegs_are_near_the_reference() {
    for name in ["portrait.jpg", "exif6.jpg", "progressive.jpg"] {
        let (found, expected) = (picture(name), as_the_reference_saw(name));
        assert_eq!(found.size(), expected.size(), "{name}");
        let pairs = found.rgb().iter().zip(expected.rgb());
        let most = pairs.map(|(a, b)| a.abs_diff(*b)).max();
        assert!(most <= Some(7), "{name}: {most:?}");
    }
}

#[test]
fn canvases_grids_tokens_and_patches_are_equal() {
    let goldens = goldens();
    let mut n_compared = 0;
    for (kind, golden) in goldens["processors"].as_object().expect("processors") {
        let processor = Processor::from_json(&golden["config"]).expect(kind);
        for (name, golden) in golden["pictures"].as_object().expect("pictures") {
            let picture = as_the_reference_saw(name);
            let layout = processor.layout(picture.width(), picture.height()).expect(name);
            let grid = [layout.grid().rows, layout.grid().columns];
            assert_eq!(golden["grid"], serde_json::json!(grid), "{kind}, {name}");
            assert_eq!(golden["tokens"], layout.n_tokens(), "{kind}, {name}");
            let prepared = processor.prepare(&picture, &layout).expect("memory");
            assert_eq!(golden["canvas"], sha256(prepared.canvas()), "{kind}, {name}: canvas");
            let patches = processor.patches(&picture, &layout).expect("memory");
            assert_eq!([patches.rows, patches.columns], grid);
            assert_eq!(patches.values.len(), grid[0] * grid[1] * processor.patch_values());
            assert_eq!(golden["patches"], sha256(&f32_bytes(&patches.values)), "{kind}, {name}");
            n_compared += 1;
        }
    }
    assert_eq!(n_compared, 50);
}

#[test]
fn patches_in_portions_are_the_same_values() {
    let goldens = goldens();
    for (kind, golden) in goldens["processors"].as_object().expect("processors") {
        let processor = Processor::from_json(&golden["config"]).expect(kind);
        let picture = picture("odd.png");
        let layout = processor.layout(picture.width(), picture.height()).expect("a size");
        let prepared = processor.prepare(&picture, &layout).expect("memory");
        let whole = processor.patches(&picture, &layout).expect("memory").values;
        let (all, one) = (processor.patch_values(), processor.still_values());
        let mut portions = vec![0.0; whole.len()];
        let mut stills = vec![0.0; prepared.n_patches() * one];
        for first in (0..prepared.n_patches()).step_by(7) {
            let range = first..(first + 7).min(prepared.n_patches());
            prepared.write(range.clone(), Frames::All, &mut portions[first * all..range.end * all]);
            prepared.write(range.clone(), Frames::One, &mut stills[first * one..range.end * one]);
        }
        assert!(portions == whole, "{kind}");
        // A channel's frames are equal, and each is that of the still.
        let plane = one / 3;
        let n_frames = all / one;
        for (patch, still) in whole.chunks_exact(all).zip(stills.chunks_exact(one)) {
            if n_frames == 1 {
                assert!(patch == still, "{kind}");
                continue;
            }
            for (channel, still) in
                patch.chunks_exact(n_frames * plane).zip(still.chunks_exact(plane))
            {
                assert!(channel.chunks_exact(plane).all(|frame| frame == still), "{kind}");
            }
        }
    }
}

#[test]
fn equal_pixels_have_one_identity_and_others_do_not() {
    let goldens = goldens();
    let processor =
        Processor::from_json(&goldens["processors"]["one-frame"]["config"]).expect("it");
    let id = |picture: &Picture| {
        let layout = processor.layout(picture.width(), picture.height()).expect("a size");
        processor.prepare(picture, &layout).expect("memory").id()
    };
    let odd = picture("odd.png");
    let copy = Picture::from_rgb(odd.size(), odd.rgb().to_vec());
    assert_eq!(id(&odd), id(&copy));
    let mut rgb = odd.rgb().to_vec();
    rgb[3 * 83 * 30 + 60] ^= 0x80;
    assert_ne!(id(&odd), id(&Picture::from_rgb(odd.size(), rgb)));
    assert_eq!(id(&odd).to_string().len(), 64);
}
