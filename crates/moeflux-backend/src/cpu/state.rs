//! What the backend holds: threads, weights, buffers, sequences.

use std::io;
use std::sync::Mutex;

use moeflux_core::HostSlab;

use super::chosen::Chosen;
use super::floats::Floats;
use super::memory::{Activations, CacheState, Matrix};
use super::parallel::{Spare, for_each_chunk};
use super::product_scratch::{RoundedInputs, Scratch};
use super::rope::RopeTable;
use super::{Isa, Pool, attention_scratch, delta, route};
use crate::{Buf, Cols, Heads, RmsNorm, Span, StateSnapshot, Vector};

/// The processor, its threads and everything resident.
#[derive(Debug)]
pub struct Cpu {
    pub(super) pool: Pool,
    pub(super) isa: Isa,
    pub(super) bufs: Vec<Activations>,
    pub(super) matrices: Vec<Matrix>,
    pub(super) vectors: Vec<Vec<f32>>,
    pub(super) ropes: Vec<RopeTable>,
    /// By `Sequence`; `None` where one was dropped.
    pub(super) sequences: Vec<Option<Vec<CacheState>>>,
    /// Copies of recurrent states inside the current step.
    pub(super) snapshots: Vec<StateSnapshot>,
    pub(super) selections: Vec<Chosen>,
    pub(super) index_scores: Floats,
    pub(super) rounded: RoundedInputs,
    pub(super) scratch: Scratch,
    pub(super) attention_scratch: Spare<attention_scratch::Scratch>,
    pub(super) attention_tiles: Spare<Vec<attention_scratch::Tile>>,
    pub(super) route_scratch: Spare<route::Scratch>,
    pub(super) delta_scratch: Spare<delta::Scratch>,
    /// What smaller weights share.
    pub(super) slab: Mutex<HostSlab>,
}

/// Works on the chosen columns of one row.
pub(super) type RowWork<'a> = dyn Fn(&Cpu, usize, &mut [f32]) + Sync + 'a;

/// Works on one head of one row.
pub(super) type HeadWork<'a> = dyn Fn(&Cpu, usize, usize, &mut [f32]) + Sync + 'a;

/// Rows of all spans together.
pub(super) fn n_rows(spans: &[Span]) -> usize {
    spans.last().map_or(0, |span| span.rows.end)
}

impl Cpu {
    /// A backend of `n_threads` threads, the caller's included, for tests and measurements;
    /// [`Cpu::try_new`] reports errors.
    ///
    /// # Panics
    /// Where the system does not start a thread.
    pub fn new(n_threads: usize, isa: Isa) -> Cpu {
        Cpu::try_new(n_threads, isa).expect("a machine that starts threads")
    }

    /// A backend of `n_threads` threads, the caller's included, whose kernels
    /// use `isa`.
    ///
    /// # Errors
    /// Where the system does not start a thread.
    pub fn try_new(n_threads: usize, isa: Isa) -> io::Result<Cpu> {
        Ok(Cpu {
            pool: Pool::try_new(n_threads.max(1))?,
            isa,
            bufs: Vec::new(),
            matrices: Vec::new(),
            vectors: Vec::new(),
            ropes: Vec::new(),
            sequences: Vec::new(),
            snapshots: Vec::new(),
            selections: Vec::new(),
            index_scores: Floats::default(),
            rounded: RoundedInputs::default(),
            scratch: Scratch::default(),
            attention_scratch: Spare::default(),
            attention_tiles: Spare::default(),
            route_scratch: Spare::default(),
            delta_scratch: Spare::default(),
            slab: Mutex::new(HostSlab::new(0)),
        })
    }

    pub(super) fn buf(&self, buf: Buf) -> &Activations {
        &self.bufs[buf.0 as usize]
    }

    /// The buffer, about to be written.
    pub(super) fn buf_mut(&mut self, buf: Buf) -> &mut Activations {
        let activations = &mut self.bufs[buf.0 as usize];
        activations.version += 1;
        activations
    }

    /// Takes a buffer out, so that others can be read while it is written.
    pub(super) fn take(&mut self, buf: Buf) -> Activations {
        let activations = std::mem::take(&mut self.bufs[buf.0 as usize]);
        assert!(activations.width > 0, "an op writes a buffer that it also reads");
        activations
    }

    pub(super) fn put(&mut self, buf: Buf, mut activations: Activations) {
        activations.version += 1;
        self.bufs[buf.0 as usize] = activations;
    }

    pub(super) fn vector(&self, vector: Vector) -> &[f32] {
        &self.vectors[vector.0 as usize]
    }

    /// The factors of one head of a norm: its own, or those that all heads share.
    pub(super) fn norm_weight(&self, op: &RmsNorm, head: usize) -> &[f32] {
        let (all, dim) = (self.vector(op.weight), op.out.head_dim);
        let is_shared = all.len() == dim;
        assert!(is_shared || all.len() == op.out.n_heads * dim, "factors of a norm");
        if is_shared { all } else { &all[head * dim..(head + 1) * dim] }
    }

    /// Calls `work` with the chosen columns of every row of `out`.
    pub(super) fn for_each_row(&mut self, rows: usize, out: Cols, cost: usize, work: &RowWork<'_>) {
        let mut taken = self.take(out.buf);
        assert!(out.start + out.len <= taken.width, "columns are inside their buffer");
        let width = taken.width;
        for_each_chunk(&self.pool, &mut taken.data[..rows * width], width, cost, &|row, values| {
            work(self, row, &mut values[out.start..out.start + out.len]);
        });
        self.put(out.buf, taken);
    }

    /// Calls `work` with every head of every row of `x`.
    pub(super) fn for_each_head(&mut self, rows: usize, x: Heads, work: &HeadWork<'_>) {
        let span = (x.n_heads - 1) * x.stride + x.head_dim;
        let all = Cols { buf: x.buf, start: x.start, len: span };
        self.for_each_row(rows, all, x.n_heads * x.head_dim, &|cpu, row, values| {
            for head in 0..x.n_heads {
                let start = head * x.stride;
                work(cpu, row, head, &mut values[start..start + x.head_dim]);
            }
        });
    }

    pub(super) fn copy_heads(&mut self, rows: usize, out: Heads, x: Heads) {
        if out == x {
            return;
        }
        self.for_each_head(rows, out, &|cpu, row, head, values| {
            values.copy_from_slice(cpu.buf(x.buf).head(row, x, head));
        });
    }
}
