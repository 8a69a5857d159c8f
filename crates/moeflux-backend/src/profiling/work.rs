//! The work of an op: bytes it must touch and products it must add up, from its arguments.

use crate::{
    Attention, Cache, CacheSpec, Cols, DeltaRule, Experts, Heads, Projection, Sequence, Span,
    Stage, StateSpace, Weight,
};

use super::profile::WeightFacts;

/// Weights and caches that the work of ops is computed from.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub(super) weights: Vec<WeightFacts>,
    /// The caches of every sequence.
    pub(super) sequences: Vec<Vec<CacheSpec>>,
    /// The output of the latest router: one projection often computes it together with the
    /// first matrices of the shared expert.
    pub(super) router: Option<Cols>,
}

/// The work of one op.
#[derive(Debug, Default)]
pub(super) struct Work {
    pub(super) weights: Vec<Weight>,
    pub(super) rows: usize,
    pub(super) bytes: u64,
    pub(super) macs: u64,
    /// Of the bytes, those that belong to the shared expert although the stage is the
    /// router's.
    pub(super) shared_bytes: u64,
}

impl Facts {
    fn weight(&self, weight: Weight) -> &WeightFacts {
        &self.weights[weight.0 as usize]
    }

    /// The row of an embedding table that each of `rows` tokens reads.
    pub(super) fn embedding(&self, rows: usize, table: Weight) -> Work {
        let table = self.weight(table);
        let bytes = rows as u64 * table.bytes() / table.rows.max(1) as u64;
        Work { rows, bytes, ..Work::default() }
    }

    pub(super) fn products(&self, rows: usize, weights: &[Weight]) -> Work {
        let mut work = Work { weights: weights.to_vec(), rows, ..Work::default() };
        for weight in weights {
            let weight = self.weight(*weight);
            work.bytes += weight.bytes();
            work.macs += (rows * weight.rows * weight.cols) as u64;
        }
        work
    }

    pub(super) fn projections(&self, rows: usize, outputs: &[Projection], stage: Stage) -> Work {
        let weights: Vec<Weight> = outputs.iter().map(|output| output.weight).collect();
        let mut work = self.products(rows, &weights);
        let is_other =
            |output: &&Projection| self.router.is_some_and(|router| router != output.out);
        if stage == Stage::Router {
            let others = outputs.iter().filter(is_other);
            work.shared_bytes = others.map(|output| self.weight(output.weight).bytes()).sum();
        }
        work
    }

    /// Products of heads read the share of a matrix that their blocks cover.
    pub(super) fn head_product(&self, rows: usize, op: &crate::HeadProduct) -> Work {
        let weight = self.weight(op.weight);
        let used = (op.x.n_heads * op.x.head_dim * op.out.head_dim) as u64;
        let whole = (weight.rows * weight.cols).max(1) as u64;
        let bytes = (weight.bytes() as u128 * u128::from(used) / u128::from(whole)) as u64;
        let weights = vec![op.weight];
        Work { weights, rows, bytes, macs: used * rows as u64, shared_bytes: 0 }
    }

    fn cache(&self, sequence: Sequence, cache: Cache) -> CacheSpec {
        self.sequences[sequence.0 as usize][cache.0 as usize]
    }

    pub(super) fn attention(&self, op: &Attention, spans: &[Span]) -> Work {
        let mut work = Work { rows: n_rows(spans), ..Work::default() };
        for span in spans {
            let end = span.position + span.rows.len();
            let visible = |n: usize| n.min(op.window.unwrap_or(usize::MAX));
            let pairs: u64 = (span.position..end).map(|at| visible(at + 1) as u64).sum();
            work.macs += pairs * (op.q.n_heads * (op.q.head_dim + op.out.head_dim)) as u64;
            let spec = self.cache(span.sequence, op.cache);
            let first = span.position.saturating_sub(visible(span.position + 1) - 1);
            work.bytes += ((end - first) * spec.bytes_per_position()) as u64;
            if let Some(entries) = op.entries {
                let spec = self.cache(span.sequence, entries);
                work.bytes += spec.saved_bytes(&(0..end)) as u64;
            }
        }
        work
    }

    /// Every row multiplies the state by its key, adds a product to it and multiplies it by
    /// the query; the state is read and written once.
    pub(super) fn delta(&self, op: &DeltaRule, spans: &[Span]) -> Work {
        self.recurrence(op.cache, 3, spans)
    }

    /// Every row adds a product to the state and multiplies it; the state is read and written once.
    pub(super) fn state_space(&self, op: &StateSpace, spans: &[Span]) -> Work {
        self.recurrence(op.cache, 2, spans)
    }

    /// The work of a state whose elements take part in `n_macs` products a row.
    fn recurrence(&self, cache: Cache, n_macs: u64, spans: &[Span]) -> Work {
        let mut work = Work { rows: n_rows(spans), ..Work::default() };
        for span in spans {
            let state = self.cache(span.sequence, cache).fixed_bytes() as u64;
            work.bytes += 2 * state;
            work.macs += n_macs * state / 4 * span.rows.len() as u64;
        }
        work
    }
}

pub(super) fn n_rows(spans: &[Span]) -> usize {
    spans.last().map_or(0, |span| span.rows.end)
}

/// Reads `n_reads` and writes one matrix of `rows` by `cols` activations.
pub(super) fn touches(rows: usize, n_reads: usize, cols: usize) -> Work {
    Work { rows, bytes: ((n_reads + 1) * rows * cols * 4) as u64, ..Work::default() }
}

pub(super) fn all(heads: Heads) -> usize {
    heads.n_heads * heads.head_dim
}

pub(super) fn experts(op: &Experts<'_>) -> Work {
    let mut work = Work::default();
    for call in op.calls {
        let layout = &call.expert.layout;
        let elements: usize = layout.matrices().map(|matrix| matrix.rows * matrix.cols).sum();
        work.rows += call.rows.len();
        work.bytes += layout.record_bytes() as u64;
        work.macs += (elements * call.rows.len()) as u64;
    }
    work
}
