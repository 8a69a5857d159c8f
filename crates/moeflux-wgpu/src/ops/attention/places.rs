//! Where positions of pools are in slabs, and by what their keys are rotated.

use std::ops::Range;

use moeflux_backend::{Cache, Rope, RopePairs, Sequence, Span};

use crate::ops::attention::inputs::pages;
use crate::state::gpu::Wgpu;
use crate::words::word;

/// No place in the slab at hand.
pub(super) const NONE: u32 = u32::MAX;

/// Sines and cosines of the rotations of pools, and how columns are paired.
pub(super) struct Angles {
    /// Where they begin among the lists.
    pub(super) list: u32,
    pub(super) n_pairs: usize,
    pub(super) is_adjacent: bool,
}

impl Angles {
    /// Of the rows of a span, or before it, at some positions.
    pub(super) fn of(
        b: &mut Wgpu,
        rope: Rope,
        span: &Span,
        positions: impl Iterator<Item = usize>,
    ) -> Angles {
        let spec = b.ropes[rope.0 as usize].spec.clone();
        let angles = positions.flat_map(|position| {
            spec.angles(span.rotary_at(position)).flat_map(|angle| {
                let (sin, cos) = f64::from(angle).sin_cos();
                [sin, cos].map(|part| part as f32)
            })
        });
        let table: Vec<u32> = angles.map(|part| (part * spec.scale).to_bits()).collect();
        let is_adjacent = spec.pairs == RopePairs::Adjacent;
        Angles { list: b.encoder.list(&table), n_pairs: spec.inv_freq.len(), is_adjacent }
    }
}

/// Where the key of a position begins.
pub(super) struct Place {
    pub(super) slab: usize,
    pub(super) word: u32,
}

/// Positions one after the other in one slab, as indices into a list of places.
pub(super) struct Run {
    pub(super) slab: usize,
    pub(super) positions: Range<usize>,
}

impl Run {
    /// The places of all positions, `NONE` outside the run.
    pub(super) fn words<'a>(&'a self, places: &'a [Place]) -> impl Iterator<Item = u32> + 'a {
        let word = |(i, place): (usize, &Place)| {
            if self.positions.contains(&i) { place.word } else { NONE }
        };
        places.iter().enumerate().map(word)
    }
}

/// The places, cut where the slab changes. Lists of a run are as long as those of all.
pub(super) fn runs(places: &[Place]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (i, place) in places.iter().enumerate() {
        match runs.last_mut().filter(|run| run.slab == place.slab) {
            Some(run) => run.positions.end = i + 1,
            None => runs.push(Run { slab: place.slab, positions: i..i + 1 }),
        }
    }
    runs
}

/// The place of a position of a cache.
pub(super) fn place(b: &Wgpu, cache: Cache, sequence: Sequence, position: usize) -> Place {
    let (kv, pages) = pages(b, sequence, cache);
    let page = kv.page(position);
    Place { slab: page.slab, word: word(pages.word(page, pages.k, position)) }
}
