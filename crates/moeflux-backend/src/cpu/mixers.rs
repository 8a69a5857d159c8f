//! Recurrent ops: they read and replace a sequence's states.

use std::ops::Range;

use super::columns::Columns;
use super::conv::{SharedHistory, Taps};
use super::delta;
use super::floats::Floats;
use super::memory::{CacheState, RecurrentState};
use super::parallel::prefetch;
use super::pool::SharedMut;
use super::state::Cpu;
use super::state_space::{self, Gates, MOST_POSITIONS, Strided};
use crate::{
    Cache, CausalConv, Decay, DeltaRule, Heads, Sequence, Span, SplitSpans, StateShape,
    StateSnapshot, StateSpace,
};

/// Elements of states that are worth a task: a few microseconds.
const STATE_ELEMENTS: usize = 32 << 10;

/// Elements of a convolution that are worth a task: some microseconds.
const CONV_ELEMENTS: usize = 4 << 10;

/// Most channels of a task: a page of a row.
const CONV_CHANNELS: usize = 1024;

/// Rows that queries and keys are prefetched ahead: they are pages apart, which
/// hardware prefetchers do not cross.
const AHEAD: usize = 4;

impl Cpu {
    /// Takes a cache out, so that it can be written while buffers are borrowed.
    pub(super) fn take_cache(&mut self, sequence: Sequence, cache: Cache) -> CacheState {
        let slot = self.cache_slot(sequence, cache);
        let (shape, floats) = (StateShape::Rows { n: 0, cols: 0 }, Floats::default());
        std::mem::replace(slot, CacheState::State(RecurrentState { shape, floats }))
    }

    /// Takes a recurrent state out, to be put back with [`put_state`](Cpu::put_state).
    fn take_state(&mut self, sequence: Sequence, cache: Cache) -> RecurrentState {
        match self.take_cache(sequence, cache) {
            CacheState::State(state) => state,
            CacheState::Kv(_) => panic!("a recurrent op needs a state"),
        }
    }

    fn put_state(&mut self, sequence: Sequence, cache: Cache, state: RecurrentState) {
        *self.cache_slot(sequence, cache) = CacheState::State(state);
    }

    /// The caches of two sequences.
    pub(super) fn both(
        &mut self,
        one: Sequence,
        other: Sequence,
    ) -> (&mut [CacheState], &mut [CacheState]) {
        let at = [one, other].map(|sequence| sequence.0 as usize);
        let both = self.sequences.get_disjoint_mut(at).expect("two sequences that exist");
        both.map(|cache| cache.as_deref_mut().expect("the sequence exists")).into()
    }

    /// A cache that no op has taken.
    pub(super) fn cache(&self, sequence: Sequence, cache: Cache) -> &CacheState {
        let caches = self.sequences[sequence.0 as usize].as_ref();
        &caches.expect("the sequence exists")[cache.0 as usize]
    }

    pub(super) fn cache_slot(&mut self, sequence: Sequence, cache: Cache) -> &mut CacheState {
        let caches = self.sequences[sequence.0 as usize].as_mut();
        &mut caches.expect("the sequence exists")[cache.0 as usize]
    }
}

/// Runs an op over spans and takes the snapshots of a cache that are inside them.
fn with_snapshots(cpu: &mut Cpu, cache: Cache, spans: &[Span], run: &dyn Fn(&mut Cpu, &[Span])) {
    let Some(SplitSpans { before, after, snapshots }) = StateSnapshot::split(&cpu.snapshots, spans)
    else {
        return run(cpu, spans);
    };
    run(cpu, &before);
    for StateSnapshot { sequence, to, .. } in snapshots {
        let (from, to) = cpu.both(sequence, to);
        let at = cache.0 as usize;
        to[at].copy_state(&from[at]);
    }
    run(cpu, &after);
}

pub(super) fn causal_conv(cpu: &mut Cpu, op: CausalConv, spans: &[Span]) {
    with_snapshots(cpu, op.cache, spans, &|cpu, spans| convolve(cpu, &op, spans));
}

fn convolve(cpu: &mut Cpu, op: &CausalConv, spans: &[Span]) {
    let mut out = cpu.take(op.out.buf);
    assert!(op.out.start + op.out.len <= out.width, "columns are inside their buffer");
    for span in spans {
        let mut state = cpu.take_state(span.sequence, op.cache);
        let (x, weight) = (cpu.buf(op.x.buf), cpu.vector(op.weight));
        let StateShape::Rows { cols: n_channels, .. } = state.shape else {
            panic!("a convolution needs the rows before its input")
        };
        assert!(op.x.len == n_channels && op.out.len == n_channels, "channels");
        let n_rows = span.rows.len();
        let taps = Taps {
            isa: cpu.isa,
            x: &x.data[span.rows.start * x.width + op.x.start..],
            x_stride: x.width,
            n_rows,
            weight,
            bias: op.bias.map(|bias| cpu.vector(bias)),
            out: SharedMut::new(&mut out.data),
            out_start: span.rows.start * out.width + op.out.start,
            out_stride: out.width,
        };
        let fair = n_channels.div_ceil(4 * cpu.pool.n_threads()).clamp(64, CONV_CHANNELS);
        let per_task = fair.max(CONV_ELEMENTS / n_rows.max(1)).next_multiple_of(16);
        let history = SharedMut::new(&mut state.floats);
        let history = SharedHistory { channels: n_channels, history };
        cpu.pool.run(n_channels.div_ceil(per_task), &|task| {
            let channels = task * per_task..((task + 1) * per_task).min(n_channels);
            // SAFETY: every channel belongs to one task.
            unsafe { history.run(&taps, channels) };
        });
        cpu.put_state(span.sequence, op.cache, state);
    }
    cpu.put(op.out.buf, out);
}

pub(super) fn delta_rule(cpu: &mut Cpu, op: DeltaRule, spans: &[Span]) {
    with_snapshots(cpu, op.cache, spans, &|cpu, spans| replace_states(cpu, &op, spans));
}

fn replace_states(cpu: &mut Cpu, op: &DeltaRule, spans: &[Span]) {
    let mut out = cpu.take(op.out.buf);
    for span in spans {
        let mut state = cpu.take_state(span.sequence, op.cache);
        let (n, rows, cols) = (op.v.n_heads, op.v.head_dim, op.k.head_dim);
        let want = StateShape::Matrices { n, rows, cols };
        assert_eq!(state.shape, want, "a delta rule needs a state of its shape");
        assert_eq!(op.a.len, n * op.decay.len(cols), "decays of a delta rule");
        let tasks = DeltaTasks {
            cpu,
            op,
            span,
            out_width: out.width,
            out: SharedMut::new(&mut out.data),
            state: SharedMut::new(&mut state.floats),
        };
        let unit = tasks.heads_per_unit();
        let n_units = op.v.n_heads / unit;
        let cost = span.rows.len() * unit * op.v.head_dim * op.k.head_dim;
        let per_task = STATE_ELEMENTS.div_ceil(cost.max(1));
        cpu.pool.run(n_units.div_ceil(per_task), &|task| {
            for i in task * per_task..((task + 1) * per_task).min(n_units) {
                tasks.run(tasks.heads_of_unit(i, unit));
            }
        });
        cpu.put_state(span.sequence, op.cache, state);
    }
    cpu.put(op.out.buf, out);
}

/// The value heads of one span.
struct DeltaTasks<'a> {
    cpu: &'a Cpu,
    op: &'a DeltaRule,
    span: &'a Span,
    out: SharedMut<'a, f32>,
    out_width: usize,
    /// `(n_v_heads, v_dim, k_dim)`.
    state: SharedMut<'a, f32>,
}

/// Value heads that share a key head.
struct UnitHeads {
    k_head: usize,
    /// Which of the value heads of the key head.
    nth: Range<usize>,
}

impl DeltaTasks<'_> {
    /// Value heads that share a key head go together, as their queries and keys
    /// are normalised once for them, unless that leaves threads without work.
    fn heads_per_unit(&self) -> usize {
        let group = self.op.v.n_heads / self.op.k.n_heads;
        if self.op.k.n_heads >= 2 * self.cpu.pool.n_threads() { group } else { 1 }
    }

    /// The heads of unit `i` of `n` value heads each.
    fn heads_of_unit(&self, i: usize, n: usize) -> UnitHeads {
        let group = self.op.v.n_heads / self.op.k.n_heads;
        let first = i * n;
        UnitHeads { k_head: first / group, nth: first % group..first % group + n }
    }

    /// Value heads of one key head.
    fn run(&self, heads: UnitHeads) {
        let mut scratch = self.cpu.delta_scratch.take();
        let rows = self.span.rows.clone();
        let blocks = delta::Blocks::new(self.cpu.isa, rows.len());
        for start in rows.clone().step_by(blocks.positions) {
            let run = start..rows.end.min(start + blocks.positions);
            self.normalise(heads.k_head, run.clone(), &mut scratch);
            for nth in heads.nth.clone() {
                let head = self.op.value_head(heads.k_head, nth);
                self.steps(head, run.clone(), blocks, &mut scratch);
            }
        }
        self.cpu.delta_scratch.put(scratch);
    }

    /// Queries and keys of length one, queries divided by `sqrt(k_dim)`.
    fn normalise(&self, k_head: usize, rows: Range<usize>, scratch: &mut delta::Scratch) {
        let (cpu, DeltaRule { q, k, .. }) = (self.cpu, *self.op);
        let k_dim = k.head_dim;
        let factor = 1.0 / (k_dim as f32).sqrt();
        for (heads, factor, out) in [(q, factor, &mut scratch.q), (k, 1.0, &mut scratch.k)] {
            out.resize(rows.len() * k_dim, 0.0);
            for (row, out) in rows.clone().zip(out.chunks_exact_mut(k_dim)) {
                if row + AHEAD < rows.end {
                    prefetch(cpu.buf(heads.buf).head(row + AHEAD, heads, k_head));
                }
                let x = cpu.buf(heads.buf).head(row, heads, k_head);
                delta::l2_normalise(cpu.isa, out, x, factor);
            }
        }
    }

    /// Prefetches rows of a head's state: with few positions, arithmetic takes less
    /// time than the read from memory.
    fn prefetch(&self, head: usize, rows: Range<usize>) {
        let DeltaRule { v, k, .. } = *self.op;
        let at = |row: usize| (head * v.head_dim + row.min(v.head_dim)) * k.head_dim;
        // SAFETY: a head is worked on by one task, which uses no part of its state meanwhile.
        prefetch(unsafe { self.state.slice(at(rows.start)..at(rows.end)) });
    }

    /// What stays of the state of one value head, and the strengths of corrections.
    fn gates(&self, head: usize, rows: Range<usize>, scratch: &mut delta::Scratch) {
        let (cpu, DeltaRule { decay, a, b, v, k, of_heads, .. }) = (self.cpu, *self.op);
        let (a_log, dt_bias) = cpu.vector(of_heads).split_at(v.n_heads);
        let n = decay.len(k.head_dim);
        let (a_log, dt_bias) = (a_log[head], &dt_bias[head * n..][..n]);
        let delta::Scratch { a: of_decay, b: of_beta, gates, decays, .. } = scratch;
        let a_of = |row: usize| &cpu.buf(a.buf).cols(row, a)[head * n..][..n];
        of_beta.clear();
        of_beta.extend(rows.clone().map(|row| cpu.buf(b.buf).cols(row, b)[head]));
        gates.resize(rows.len(), delta::Gates::default());
        if decay == Decay::Head {
            of_decay.clear();
            of_decay.extend(rows.map(|row| a_of(row)[0] + dt_bias[0]));
            return delta::gates(cpu.isa, gates, a_log, of_decay, of_beta);
        }
        delta::strengths(cpu.isa, gates, of_beta);
        decays.resize(rows.len() * n, 0.0);
        for (row, out) in rows.zip(decays.chunks_exact_mut(n)) {
            match decay {
                Decay::Bounded { bound } => {
                    delta::bounded_decays(cpu.isa, out, bound, a_log, a_of(row), dt_bias);
                }
                _ => delta::column_decays(cpu.isa, out, a_log, a_of(row), dt_bias),
            }
        }
    }

    /// Some rows of one value head.
    fn steps(
        &self,
        head: usize,
        rows: Range<usize>,
        blocks: delta::Blocks,
        scratch: &mut delta::Scratch,
    ) {
        let (cpu, DeltaRule { v, k, .. }) = (self.cpu, *self.op);
        let (v_dim, k_dim) = (v.head_dim, k.head_dim);
        let is_single = rows.len() == 1;
        if is_single {
            self.prefetch(head, 0..blocks.rows);
        }
        self.gates(head, rows.clone(), scratch);
        let delta::Scratch { q, k, gates, decays, turned, .. } = scratch;
        let decays = (self.op.decay != Decay::Head).then_some(&decays[..]);
        let values = cpu.buf(v.buf);
        for first in (0..v_dim).step_by(blocks.rows) {
            let block = first..v_dim.min(first + blocks.rows);
            if is_single {
                self.prefetch(head, block.end..block.end + blocks.rows);
            }
            let at = (head * v_dim + block.start) * k_dim..(head * v_dim + block.end) * k_dim;
            // SAFETY: a head is worked on by one task.
            let state = unsafe { self.state.slice(at) };
            let run = delta::Run {
                q,
                k,
                gates,
                decays,
                v: &values.data[rows.start * values.width + v.start + head * v.stride + first..],
                v_stride: values.width,
                k_dim,
            };
            let out = self.op.out;
            let first = rows.start * self.out_width + out.start + head * out.stride;
            let columns = first + block.start..first + block.end;
            // SAFETY: a head is worked on by one task, and the columns of different heads do not
            // overlap.
            let out = unsafe { Columns::new(self.out, columns, self.out_width) };
            delta::steps(cpu.isa, state, out, run, turned);
        }
    }
}

pub(super) fn state_space(cpu: &mut Cpu, op: StateSpace, spans: &[Span]) {
    with_snapshots(cpu, op.cache, spans, &|cpu, spans| advance_states(cpu, &op, spans));
}

fn advance_states(cpu: &mut Cpu, op: &StateSpace, spans: &[Span]) {
    let mut out = cpu.take(op.out.buf);
    let (n_heads, out_width) = (op.x.n_heads, out.width);
    for span in spans {
        let mut state = cpu.take_state(span.sequence, op.cache);
        assert_eq!(state.shape, op.state_shape(), "a state-space op needs a state of its shape");
        let per_head = state.floats.len() / n_heads;
        let (outputs, states) = (SharedMut::new(&mut out.data), SharedMut::new(&mut state.floats));
        let per_task = STATE_ELEMENTS.div_ceil((span.rows.len() * per_head).max(1));
        let shared = &*cpu;
        shared.pool.run(n_heads.div_ceil(per_task), &|task| {
            for head in task * per_task..((task + 1) * per_task).min(n_heads) {
                // SAFETY: a head is worked on by one task.
                let state = unsafe { states.slice(head * per_head..(head + 1) * per_head) };
                for start in span.rows.clone().step_by(MOST_POSITIONS) {
                    let rows = start..span.rows.end.min(start + MOST_POSITIONS);
                    let first = start * out_width + op.out.start + head * op.out.stride;
                    let columns = first..first + op.out.head_dim;
                    // SAFETY: a head is worked on by one task, and the columns of different heads
                    // do not overlap.
                    let mut out = unsafe { Columns::new(outputs, columns, out_width) };
                    advance_head(shared, op, head, rows, state, &mut out);
                }
            }
        });
        cpu.put_state(span.sequence, op.cache, state);
    }
    cpu.put(op.out.buf, out);
}

/// At most [`MOST_POSITIONS`] rows of one head.
fn advance_head(
    cpu: &Cpu,
    op: &StateSpace,
    head: usize,
    rows: Range<usize>,
    state: &mut [f32],
    out: &mut Columns<'_>,
) {
    let of_head = |i: usize| cpu.vector(op.of_heads)[i * op.x.n_heads + head];
    let [dt_bias, a_log, skip] = [0, 1, 2].map(of_head);
    let (mut dt, mut gates) = ([0.0; MOST_POSITIONS], [Gates::default(); MOST_POSITIONS]);
    let (dt, gates) = (&mut dt[..rows.len()], &mut gates[..rows.len()]);
    for (dt, row) in dt.iter_mut().zip(rows.clone()) {
        *dt = cpu.buf(op.dt.buf).cols(row, op.dt)[head] + dt_bias;
    }
    state_space::gates(cpu.isa, gates, a_log, dt);
    let strided = |heads: Heads, head: usize| {
        let buf = cpu.buf(heads.buf);
        let first = rows.start * buf.width + heads.start + head * heads.stride;
        Strided { values: &buf.data[first..], stride: buf.width, len: heads.head_dim }
    };
    let group = head / op.heads_per_group();
    let run = state_space::Run {
        x: strided(op.x, head),
        b: strided(op.b, group),
        c: strided(op.c, group),
        gates,
        skip,
    };
    state_space::steps(cpu.isa, state, out, run);
}
