//! Resizing to 84 sizes against hashes of the reference.

use moeflux_image::{Picture, Size};

use crate::data::{sha256, text};

/// The picture by whose formula `resizes.txt` was made.
pub(crate) fn pattern(width: usize, height: usize) -> Picture {
    let mut rgb = Vec::with_capacity(3 * width * height);
    for y in 0..height {
        for x in 0..width {
            for c in 0..3 {
                let level =
                    x * x * (c + 3) + y * y * 5 + x * y * (7 - c) + (x >> 2) * (y >> 3) * 11;
                rgb.push((level % 251) as u8);
            }
        }
    }
    Picture::from_rgb(Size { width, height }, rgb)
}

#[test]
fn resized_pixels_are_equal() {
    let mut n_compared = 0;
    for line in text("resizes.txt").lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let number = |i: usize| fields[i].parse::<usize>().expect("a number");
        let to = Size { width: number(2), height: number(3) };
        let found = pattern(number(0), number(1)).resized(to).expect("memory");
        assert_eq!((found.size(), sha256(found.rgb()).as_str()), (to, fields[4]), "{line}");
        n_compared += 1;
    }
    assert_eq!(n_compared, 84);
}
