//! Keys of pools of positions, in the places of the pools' last positions.

use std::ops::Range;

use moeflux_backend::{KvType, PoolKeys, RopePairs, SelectPositions, Span};

use crate::commands::encoder::Encoder;
use crate::commands::grid::Grid;
use crate::kernels::attention as kernels;
use crate::ops::attention::inputs::pages;
use crate::state::gpu::Wgpu;
use crate::words::{PER_ELEMENT, word};

/// No place in the slab at hand.
const NONE: u32 = u32::MAX;

/// Completes the pools that end in a span, whose own keys are stored.
pub(super) fn complete(b: &mut Wgpu, op: &SelectPositions, pools: &PoolKeys, span: &Span) {
    let size = pools.size;
    let n_pairs = b.ropes[pools.rope.0 as usize].n_pairs();
    let all = span.position / size..(span.position + span.rows.len()) / size;
    let dtype = pages(b, span.sequence, op.cache).1.dtype;
    assert!(dtype == KvType::F32, "keys of pools are not rounded");
    // Lists of an op are bounded.
    let at_once = (Encoder::list_limit() / (2 * size + 2 * n_pairs + 1)).max(1);
    for first in all.clone().step_by(at_once) {
        complete_some(b, op, pools, span, first..all.end.min(first + at_once));
    }
}

fn complete_some(
    b: &mut Wgpu,
    op: &SelectPositions,
    pools: &PoolKeys,
    span: &Span,
    numbers: Range<usize>,
) {
    b.encoder.begin();
    let (size, dim, n) = (pools.size, op.q.head_dim, numbers.len());
    let means = b.scratch.pool_means.words(&mut b.encoder, n * dim);
    let positions = numbers.start * size..numbers.end * size;
    let places: Vec<Place> =
        positions.clone().map(|position| place(b, op, span, position)).collect();
    let runs = runs(&places);
    let lists = b.encoder.arena();
    // Means of all pools are whole before one of them takes the place of a key.
    for run in &runs {
        let words: Vec<u32> = run.words(&places).collect();
        let list = b.encoder.list(&words);
        let is_first = u32::from(run.positions.start == 0);
        let params = [word(n * dim), word(dim), word(size), list, is_first];
        let mem = pages(b, span.sequence, op.cache).1.mem(run.slab).clone();
        let grid = Grid::Linear((n * dim).div_ceil(PER_ELEMENT));
        b.encoder.dispatch(kernels::SumPools {}, &params, &[&means, &mem, &lists], grid);
    }
    let spec = b.ropes[pools.rope.0 as usize].spec.clone();
    let n_pairs = spec.inv_freq.len();
    let firsts = positions.step_by(size);
    let angles = firsts.flat_map(|position| {
        spec.angles(span.rotary_at(position)).flat_map(|angle| {
            let (sin, cos) = f64::from(angle).sin_cos();
            [sin, cos].map(|part| part as f32)
        })
    });
    let table: Vec<u32> = angles.map(|part| (part * spec.scale).to_bits()).collect();
    let table = b.encoder.list(&table);
    let weight = b.vector(pools.weight).clone();
    for run in runs {
        let words: Vec<u32> = run.words(&places).skip(size - 1).step_by(size).collect();
        let list = b.encoder.list(&words);
        let params = [word(n), word(dim), word(n_pairs), pools.eps.to_bits(), list, table];
        let mem = pages(b, span.sequence, op.cache).1.mem(run.slab).clone();
        let kernel = kernels::PutPools { is_adjacent: spec.pairs == RopePairs::Adjacent };
        let buffers = [&mem, &means, &weight, &lists];
        b.encoder.dispatch(kernel, &params, &buffers, Grid::Linear(n));
    }
}

/// Where the key of a position begins.
struct Place {
    slab: usize,
    word: u32,
}

/// Positions one after the other in one slab, as indices into a list of places.
struct Run {
    slab: usize,
    positions: Range<usize>,
}

impl Run {
    /// The places of all positions, `NONE` outside the run.
    fn words<'a>(&'a self, places: &'a [Place]) -> impl Iterator<Item = u32> + 'a {
        let word = |(i, place): (usize, &Place)| {
            if self.positions.contains(&i) { place.word } else { NONE }
        };
        places.iter().enumerate().map(word)
    }
}

/// The places, cut where the slab changes. Lists of a run are as long as those of all.
fn runs(places: &[Place]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (i, place) in places.iter().enumerate() {
        match runs.last_mut().filter(|run| run.slab == place.slab) {
            Some(run) => run.positions.end = i + 1,
            None => runs.push(Run { slab: place.slab, positions: i..i + 1 }),
        }
    }
    runs
}

fn place(b: &Wgpu, op: &SelectPositions, span: &Span, position: usize) -> Place {
    let (kv, pages) = pages(b, span.sequence, op.cache);
    let page = kv.page(position);
    Place { slab: page.slab, word: word(pages.word(page, pages.k, position)) }
}
