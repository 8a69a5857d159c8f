//! What holds for any picture and any bytes.

use moeflux_image::{DecodeLimits, Frames, Picture, Size, picture_size};
use proptest::prelude::*;

use crate::data::{bytes, processors};
use crate::resizes::pattern;

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]

    #[test]
    fn layouts_are_whole_tokens(width in 1_usize..9000, height in 1_usize..9000) {
        for (name, processor) in processors() {
            let Ok(layout) = processor.layout(width, height) else { continue };
            let parameters = processor.parameters();
            let (grid, canvas, resized) = (layout.grid(), layout.canvas(), layout.resized());
            let merge = parameters.merge_size;
            prop_assert_eq!(grid.rows * parameters.patch_size, canvas.height, "{}", name);
            prop_assert_eq!(grid.columns * parameters.patch_size, canvas.width, "{}", name);
            prop_assert_eq!(layout.n_tokens() * merge * merge, grid.n_patches(), "{}", name);
            prop_assert!(resized.width > 0 && resized.height > 0, "{}", name);
            prop_assert!(resized.width <= canvas.width && resized.height <= canvas.height, "{}", name);
        }
    }

    #[test]
    fn one_colour_stays_that_colour(
        (width, height) in (1_usize..90, 1_usize..90),
        (to_width, to_height) in (1_usize..90, 1_usize..90),
        level: u8,
    ) {
        let picture = Picture::from_rgb(Size { width, height }, vec![level; 3 * width * height]);
        let resized = picture.resized(Size { width: to_width, height: to_height }).expect("memory");
        // Rounded weights may sum to a little more or less than one.
        prop_assert!(resized.rgb().iter().all(|found| found.abs_diff(level) <= 1));
    }

    #[test]
    fn every_patch_is_written_once(width in 20_usize..200, height in 20_usize..200) {
        for (name, processor) in processors().into_iter().filter(|row| row.0 != "budget") {
            let picture = pattern(width, height);
            let Ok(layout) = processor.layout(width, height) else { continue };
            let prepared = processor.prepare(&picture, &layout).expect("memory");
            let mut places: Vec<_> = (0..prepared.n_patches()).map(|i| prepared.place(i)).collect();
            places.sort_unstable();
            places.dedup();
            prop_assert_eq!(places.len(), layout.grid().n_patches(), "{}", name);
            let mut last = vec![f32::NAN; processor.patch_values()];
            prepared.write(prepared.n_patches() - 1..prepared.n_patches(), Frames::All, &mut last);
            prop_assert!(last.iter().all(|value| value.is_finite()), "{}", name);
        }
    }

    #[test]
    fn changed_bytes_are_pictures_or_one_line(
        which in 0_usize..8,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        const FILES: [&str; 8] = ["odd.png", "palette.png", "portrait.jpg", "progressive.jpg",
            "formats/gif-interlaced.gif", "formats/webp-lossless.webp", "formats/webp-lossy-alpha.webp",
            "formats/jpeg-cmyk.jpg"];
        let mut file = bytes(FILES[which]);
        for (index, byte) in changes {
            let at = index.index(file.len());
            file[at] = byte;
        }
        let limits = DecodeLimits { pixels: 1 << 20, ..DecodeLimits::default() };
        match Picture::decode(&file, &limits) {
            Ok(picture) => prop_assert_eq!(picture_size(&file, &limits), Ok(picture.size())),
            Err(error) => prop_assert_eq!(error.to_string().lines().count(), 1),
        }
    }
}
