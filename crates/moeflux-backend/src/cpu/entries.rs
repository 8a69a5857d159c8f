//! Entries of pools of positions.
//!
//! For one column: the maximum of its gates by ascending slot, the sum of `exp(gate - maximum)` and the mix
//! of the values by ascending slot, then one division.

use super::Isa;
use super::isa::for_every_isa;
use super::kv_cache::KvCache;
use super::math::exp;
use super::memory::CacheState;
use super::norm::rms_norm_in_place;
use super::state::Cpu;
use crate::{PoolEntries, Span};

pub(super) fn pool_entries(cpu: &mut Cpu, op: PoolEntries, spans: &[Span]) {
    for span in spans {
        let mut rows_state = cpu.take_cache(span.sequence, op.rows);
        let mut entries_state = cpu.take_cache(span.sequence, op.entries);
        let (CacheState::Kv(rows), CacheState::Kv(entries)) = (&mut rows_state, &mut entries_state)
        else {
            panic!("entries need a cache of rows and one of entries")
        };
        for (i, row) in span.rows.clone().enumerate() {
            rows.store(0, span.position + i, cpu.buf(op.x.buf).cols(row, op.x), &[]);
        }
        Job { cpu, op: &op, span, rows }.run(entries);
        *cpu.cache_slot(span.sequence, op.rows) = rows_state;
        *cpu.cache_slot(span.sequence, op.entries) = entries_state;
    }
}

/// The pools that a span completes.
struct Job<'a> {
    cpu: &'a Cpu,
    op: &'a PoolEntries,
    span: &'a Span,
    rows: &'a KvCache,
}

/// Values, their gates and what is added to these.
struct Slot<'a> {
    values: &'a [f32],
    gates: &'a [f32],
    bias: &'a [f32],
}

impl Job<'_> {
    fn run(&self, entries: &mut KvCache) {
        let (dim, size) = (entries.k_dim(), entries.pool());
        let width = self.op.x.len / 2;
        assert!(
            width == dim || width == 2 * dim,
            "values are as wide as entries, or twice as wide"
        );
        let end = self.span.position + self.span.rows.len();
        let pools = self.span.position / size..end / size;
        if pools.is_empty() {
            return;
        }
        let shared = entries.share(pools.clone());
        self.cpu.pool.run(pools.len(), &|i| {
            let (pool, mut entry) = (pools.start + i, vec![0.0; dim]);
            self.fill(pool, size, &mut entry);
            // SAFETY: an entry belongs to one task.
            unsafe { shared.store(0, pool, &entry, &[]) };
        });
    }

    /// The entry of a pool.
    fn fill(&self, pool: usize, size: usize, entry: &mut [f32]) {
        let PoolEntries { bias, weight, eps, rope, .. } = *self.op;
        let (cpu, dim, width) = (self.cpu, entry.len(), self.op.x.len / 2);
        let bias = cpu.vector(bias);
        let slot = |position: usize, first_col: usize| {
            let row = self.rows.keys().stored(0, position..position + 1);
            let row: &[f32] = bytemuck::cast_slice(row);
            assert_eq!(row.len(), 2 * width, "rows are stored as floats");
            let (values, gates) = row.split_at(width);
            let cols = first_col..first_col + dim;
            let bias = &bias[position % size * width..][..width];
            Slot { values: &values[cols.clone()], gates: &gates[cols.clone()], bias: &bias[cols] }
        };
        let first = pool * size;
        let before = if width > dim { first.saturating_sub(size)..first } else { 0..0 };
        let before = before.map(|position| slot(position, 0));
        let own = (first..first + size).map(|position| slot(position, width - dim));
        let slots: Vec<Slot<'_>> = before.chain(own).collect();
        mix_slots(cpu.isa, entry, &slots);
        rms_norm_in_place(cpu.isa, entry, cpu.vector(weight), eps);
        let rope = &cpu.ropes[rope.0 as usize];
        let rotated = dim - rope.n_columns();
        rope.rotate_to(cpu.isa, self.span.rotary_at(first), &mut entry[rotated..]);
    }
}

/// Columns that are worked on together.
const COLUMNS: usize = 64;

fn mix_slots(isa: Isa, entry: &mut [f32], slots: &[Slot<'_>]) {
    for (i, part) in entry.chunks_mut(COLUMNS).enumerate() {
        mix_columns(isa, part, slots, i * COLUMNS);
    }
}

for_every_isa! {
    /// Some columns of an entry.
    fn mix_columns(entry: &mut [f32], slots: &[Slot<'_>], first: usize) {
        let n = entry.len();
        let (mut highest, mut sums) = ([f32::NEG_INFINITY; COLUMNS], [0.0; COLUMNS]);
        for Slot { gates, bias, .. } in slots {
            let gates = gates[first..][..n].iter().zip(&bias[first..][..n]);
            for ((gate, bias), highest) in gates.zip(&mut highest) {
                let gate = gate + bias;
                // A comparison that lets NaN pass.
                *highest = if gate < *highest { *highest } else { gate };
            }
        }
        entry.fill(0.0);
        for Slot { values, gates, bias } in slots {
            let gates = gates[first..][..n].iter().zip(&bias[first..][..n]);
            let values = gates.zip(&values[first..][..n]);
            for ((((gate, bias), value), highest), (sum, mixed)) in
                values.zip(&highest).zip(sums.iter_mut().zip(entry.iter_mut()))
            {
                let share = exp(gate + bias - highest);
                *sum += share;
                *mixed = share.mul_add(*value, *mixed);
            }
        }
        for (mixed, sum) in entry.iter_mut().zip(&sums) {
            *mixed /= sum;
        }
    }
}
