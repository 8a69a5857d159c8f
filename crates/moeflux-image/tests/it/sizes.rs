//! The rules of sizes against a table of 400 sizes, and the ceiling on tokens.

use std::num::NonZeroUsize;

use moeflux_image::{LayoutError, Processor};

use crate::data::{processors, text};

fn numbers(field: &str) -> Vec<usize> {
    field.split(',').map(|number| number.parse().expect("a number")).collect()
}

#[test]
fn sizes_are_those_of_the_reference() {
    let processors = processors();
    let table = text("sizes.txt");
    let mut lines = table.lines();
    let header: Vec<&str> = lines.next().expect("a header").split(' ').skip(2).collect();
    let mut n_compared = 0;
    for line in lines {
        let fields: Vec<&str> = line.split(' ').collect();
        let (width, height) = (numbers(fields[0])[0], numbers(fields[1])[0]);
        for (name, expected) in header.iter().zip(&fields[2..]) {
            let processor = &processors.iter().find(|row| row.0 == *name).expect("a rule").1;
            let layout = processor.layout(width, height);
            n_compared += 1;
            if *expected == "refused" {
                assert!(layout.is_err(), "{name}: {width} x {height}: {layout:?}");
                continue;
            }
            let layout = layout.unwrap_or_else(|e| panic!("{name}: {width} x {height}: {e}"));
            let (resized, canvas) = (layout.resized(), layout.canvas());
            let found = [resized.width, resized.height, canvas.width, canvas.height];
            let expected = numbers(expected);
            assert_eq!(found[..expected.len()], expected, "{name}: {width} x {height}");
            if expected.len() == 2 {
                assert_eq!(resized, canvas, "{name}: {width} x {height}");
            }
        }
    }
    assert_eq!(n_compared, 2000);
}

#[test]
fn refusals_name_the_size_and_the_limit() {
    let processors = processors();
    let refusal = |name: &str, width, height| {
        let processor = &processors.iter().find(|row| row.0 == name).expect("a rule").1;
        processor.layout(width, height).expect_err("a refusal").to_string()
    };
    let expected =
        "the picture is 20000 x 1 pixels; this model takes a ratio of sides up to 200: cut it";
    assert_eq!(refusal("one-frame", 20_000, 1), expected);
    assert!(refusal("two-frames", 1, 7000).contains("1 x 7000"));
    assert!(refusal("budget", 0, 3).contains("0 x 3"));
    assert!(refusal("canvas", 1 << 25, 3).contains("33554432 x 3"));
    let tiny = refusal("one-frame", usize::MAX, usize::MAX);
    assert!(tiny.contains("1 to 16777216"), "{tiny}");
}

/// Sizes of every kind: strips, small and large ones.
fn many_sizes() -> impl Iterator<Item = (usize, usize)> {
    const SIDES: [usize; 12] = [1, 5, 17, 40, 64, 100, 333, 512, 1080, 1920, 4032, 9000];
    SIDES.into_iter().flat_map(|width| SIDES.map(|height| (width, height)))
}

#[test]
fn a_ceiling_holds_and_changes_nothing_above_the_rule() {
    for (name, processor) in processors() {
        for (width, height) in many_sizes() {
            let Ok(own) = processor.layout(width, height) else { continue };
            for most in [1, 2, 3, 10, 64, 255, 1024, 100_000] {
                let limited = processor.clone().with_max_tokens(NonZeroUsize::new(most));
                let layout = match limited.layout(width, height) {
                    Ok(layout) => layout,
                    // The rule itself finds no size for it.
                    Err(LayoutError::Vanishes { .. }) => continue,
                    Err(error) => panic!("{name}: {width} x {height}, {most}: {error}"),
                };
                assert!(
                    layout.n_tokens() <= most,
                    "{name}: {width} x {height}, {most}: {layout:?}"
                );
                assert!(layout.resized().width <= layout.canvas().width);
                assert!(layout.resized().height <= layout.canvas().height);
                if own.n_tokens() <= most {
                    assert_eq!(layout, own, "{name}: {width} x {height}, {most}");
                }
            }
        }
    }
}

#[test]
fn a_ceiling_uses_most_of_what_it_allows() {
    for (name, processor) in processors() {
        let limited: Processor = processor.with_max_tokens(NonZeroUsize::new(256));
        let layout = limited.layout(1920, 1080).expect("a size");
        assert!((220..=256).contains(&layout.n_tokens()), "{name}: {layout:?}");
    }
}
