//! Files of `tests/data`, and what tests share.

use std::path::PathBuf;

use moeflux_image::{DecodeLimits, Levels, Parameters, Picture, Processor, SizeRule, ValueOrder};
use sha2::{Digest, Sha256};

pub(crate) fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

pub(crate) fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

pub(crate) fn text(name: &str) -> String {
    String::from_utf8(bytes(name)).expect("text")
}

pub(crate) fn picture(name: &str) -> Picture {
    let decoded = Picture::decode(&bytes(name), &DecodeLimits::default());
    decoded.unwrap_or_else(|error| panic!("{name}: {error}"))
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The names and the processors of published files, without a model's own values.
pub(crate) fn processors() -> Vec<(&'static str, Processor)> {
    let area = |min_pixels, max_pixels, counted_frames| SizeRule::Area {
        min_pixels,
        max_pixels,
        counted_frames,
        grows_short_sides: counted_frames == 2,
        max_ratio: 200,
    };
    let half = Levels::Standardised { mean: [0.5; 3], deviation: [0.5; 3] };
    let patches = SizeRule::PatchLimit { max_patches: 16_384, max_side_patches: 512 };
    let canvas = SizeRule::Canvas { min_tokens: 16, max_tokens: 8000 };
    let (tokens, rows) = (ValueOrder::TokensThenChannels, ValueOrder::RowsThenChannels);
    let rules = [
        ("one-frame", area(65_536, 16_777_216, 1), 16, 2, 2, half, tokens),
        ("two-frames", area(12_544, 9_633_792, 2), 14, 2, 2, half, tokens),
        ("patches", patches, 14, 2, 1, half, rows),
        (
            "budget",
            SizeRule::TokenBudget { tokens: 280 },
            16,
            3,
            1,
            Levels::Unit,
            ValueOrder::RowsChannelsLast,
        ),
        ("canvas", canvas, 14, 2, 2, half, tokens),
    ];
    rules
        .map(|(name, rule, patch_size, merge_size, n_frames, levels, order)| {
            let parameters = Parameters { patch_size, merge_size, n_frames, rule, levels, order };
            (name, Processor::new(parameters).expect("published values"))
        })
        .into()
}
