//! Keys of pools of positions, in the places of the pools' last positions.

use std::ops::Range;

use moeflux_backend::{KvType, PoolFunction, PoolKeys, SelectPositions, Span, Vector};

use crate::commands::encoder::Encoder;
use crate::commands::grid::Grid;
use crate::device::buffer::Mem;
use crate::kernels::attention as kernels;
use crate::ops::attention::inputs::pages;
use crate::ops::attention::places::{Angles, Place, Run, place, runs};
use crate::state::gpu::Wgpu;
use crate::words::{PER_ELEMENT, word};

/// Completes the pools that end in a span, whose own keys are stored.
pub(super) fn complete(b: &mut Wgpu, op: &SelectPositions, pools: &PoolKeys, span: &Span) {
    let size = pools.size;
    let n_pairs = match pools.function {
        PoolFunction::Mean { rope, .. } => b.ropes[rope.0 as usize].n_pairs(),
        PoolFunction::Gated { .. } => 0,
    };
    let all = span.position / size..(span.position + span.rows.len()) / size;
    let dtype = pages(b, span.sequence, op.cache).1.dtype;
    assert!(dtype == KvType::F32, "keys of pools are not rounded");
    // Lists of an op are bounded.
    let at_once = (Encoder::list_limit() / (2 * size + 2 * n_pairs + 1)).max(1);
    for first in all.clone().step_by(at_once) {
        let part = Part::new(b, op, pools, span, first..all.end.min(first + at_once));
        match pools.function {
            PoolFunction::Mean { weight, eps, rope } => {
                let firsts = part.numbers.clone().map(|pool| pool * size);
                let table = Angles::of(b, rope, span, firsts);
                part.sum(b);
                part.put_means(b, weight, eps, &table);
            }
            PoolFunction::Gated { bias } => {
                part.gate(b, bias);
                part.put_gated(b);
            }
        }
    }
}

/// Some pools of a span.
struct Part<'a> {
    op: &'a SelectPositions,
    span: &'a Span,
    size: usize,
    /// Columns of a key.
    dim: usize,
    numbers: Range<usize>,
    /// Of all positions of the pools.
    places: Vec<Place>,
    runs: Vec<Run>,
    /// What is known of keys, before these take the places of others.
    sums: Mem,
    lists: Mem,
}

impl<'a> Part<'a> {
    fn new(
        b: &mut Wgpu,
        op: &'a SelectPositions,
        pools: &PoolKeys,
        span: &'a Span,
        numbers: Range<usize>,
    ) -> Part<'a> {
        b.encoder.begin();
        let (size, dim, n) = (pools.size, op.q.head_dim, numbers.len());
        let per_column = match pools.function {
            PoolFunction::Mean { .. } => 1,
            PoolFunction::Gated { .. } => 3,
        };
        let sums = b.scratch.pool_sums.words(&mut b.encoder, per_column * n * dim);
        let positions = numbers.start * size..numbers.end * size;
        let places: Vec<Place> =
            positions.map(|position| place(b, op.cache, span.sequence, position)).collect();
        let runs = runs(&places);
        let lists = b.encoder.arena();
        Part { op, span, size, dim, numbers, places, runs, sums, lists }
    }

    /// The slab of a run.
    fn slab(&self, b: &Wgpu, run: &Run) -> Mem {
        pages(b, self.span.sequence, self.op.cache).1.mem(run.slab).clone()
    }

    /// Elements of all keys.
    fn n(&self) -> usize {
        self.numbers.len() * self.dim
    }

    /// The parameters of a kernel that reads the positions of a run.
    fn reads(&self, b: &mut Wgpu, run: &Run) -> [u32; 5] {
        let words: Vec<u32> = run.words(&self.places).collect();
        let list = b.encoder.list(&words);
        let is_first = u32::from(run.positions.start == 0);
        [word(self.n()), word(self.dim), word(self.size), list, is_first]
    }

    /// For each pool of a run, where its key belongs.
    fn last_places(&self, b: &mut Wgpu, run: &Run) -> u32 {
        let last = run.words(&self.places).skip(self.size - 1).step_by(self.size);
        let words: Vec<u32> = last.collect();
        b.encoder.list(&words)
    }

    /// Means of all pools, whole before one of them takes the place of a key.
    fn sum(&self, b: &mut Wgpu) {
        for run in &self.runs {
            let params = self.reads(b, run);
            let mem = self.slab(b, run);
            let grid = Grid::Linear(self.n().div_ceil(PER_ELEMENT));
            b.encoder.dispatch(
                kernels::SumPools {},
                &params,
                &[&self.sums, &mem, &self.lists],
                grid,
            );
        }
    }

    fn put_means(&self, b: &mut Wgpu, weight: Vector, eps: f32, angles: &Angles) {
        let weight = b.vector(weight).clone();
        for run in &self.runs {
            let list = self.last_places(b, run);
            let n = self.numbers.len();
            let n_pairs = word(angles.n_pairs);
            let params = [word(n), word(self.dim), n_pairs, eps.to_bits(), list, angles.list];
            let mem = self.slab(b, run);
            let kernel = kernels::PutPools { is_adjacent: angles.is_adjacent };
            let buffers = [&mem, &self.sums, &weight, &self.lists];
            b.encoder.dispatch(kernel, &params, &buffers, Grid::Linear(n));
        }
    }

    /// Sums of shares and of keys by their shares.
    fn gate(&self, b: &mut Wgpu, bias: Vector) {
        let bias = b.vector(bias).clone();
        for run in &self.runs {
            let [n, dim, size, list, is_first] = self.reads(b, run);
            let params = [n, dim, size, list, is_first, dim, 0, size];
            let mem = self.slab(b, run);
            let grid = Grid::Linear(self.n().div_ceil(PER_ELEMENT));
            let buffers = [&self.sums, &mem, &self.lists, &bias];
            b.encoder.dispatch(kernels::GatePools {}, &params, &buffers, grid);
        }
    }

    fn put_gated(&self, b: &mut Wgpu) {
        for run in &self.runs {
            let list = self.last_places(b, run);
            let params = [word(self.n()), word(self.dim), list];
            let mem = self.slab(b, run);
            let grid = Grid::Linear(self.n().div_ceil(PER_ELEMENT));
            let buffers = [&mem, &self.sums, &self.lists];
            b.encoder.dispatch(kernels::PutGatedPools {}, &params, &buffers, grid);
        }
    }
}
