//! A backend that looks at the clock around every op of another one.
//!
//! While nothing is recorded an op costs one more call and one branch.

mod recording;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use moeflux_core::{Expert, ExpertId, ExpertKey, HostBuf, LayerIdx, TokenId};

pub use self::recording::{OpKey, OpSample, Recording, StageSpan, WeightFacts};
use crate::{
    AllExperts, Attention, Backend, Beside, Buf, Cache, CacheSpec, CausalConv, Cols, Combine,
    DeltaNet, DeltaRule, DeviceCounters, DeviceError, ExpertRow, Experts, GatedAttention,
    GatedRmsNorm, HeadProduct, Heads, HeldExperts, HostMatrix, Keep, KernelTime, LayerNorm, Leader,
    Projection, RmsNorm, Rope, RopeSpec, Route, RoutedExperts, Routing, SelectPositions, Selection,
    Sequence, Span, Stage, Vector, Weight,
};

#[derive(Debug, Default)]
struct Shared {
    is_on: AtomicBool,
    recording: Mutex<Recording>,
    weights: Mutex<Vec<WeightFacts>>,
}

/// Starts and stops the recording of a [`Timed`] backend.
#[derive(Clone, Debug, Default)]
pub struct Stopwatch(Arc<Shared>);

impl Stopwatch {
    /// Begins a new recording.
    pub fn start(&self) {
        *lock(&self.0.recording) = Recording::default();
        self.0.is_on.store(true, Ordering::Relaxed);
    }

    /// Ends the recording and gives it out.
    pub fn stop(&self) -> Recording {
        self.0.is_on.store(false, Ordering::Relaxed);
        std::mem::take(&mut lock(&self.0.recording))
    }

    /// Every matrix loaded so far, by [`Weight`].
    pub fn weights(&self) -> Vec<WeightFacts> {
        lock(&self.0.weights).clone()
    }
}

/// Values behind these locks are whole at any time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Another backend and a clock.
pub struct Timed {
    inner: Box<dyn Backend>,
    shared: Arc<Shared>,
    facts: Facts,
    stage: Stage,
    layer: Option<u16>,
}

/// What ops' work is computed from.
#[derive(Debug, Default)]
struct Facts {
    weights: Vec<WeightFacts>,
    /// The caches of every sequence.
    sequences: Vec<Vec<CacheSpec>>,
    /// Where routers leave their logits: one projection often computes them
    /// together with the first matrices of the shared expert.
    router: Option<Cols>,
}

/// What an op has to do.
#[derive(Debug, Default)]
struct Work {
    weights: Vec<Weight>,
    rows: usize,
    bytes: u64,
    macs: u64,
    /// Of the bytes, those that belong to the shared expert although the stage
    /// is the router's.
    shared_bytes: u64,
}

impl Timed {
    /// Wraps `inner`, which has loaded nothing yet.
    pub fn new(inner: Box<dyn Backend>) -> (Timed, Stopwatch) {
        let shared = Arc::new(Shared::default());
        let stopwatch = Stopwatch(Arc::clone(&shared));
        let facts = Facts::default();
        (Timed { inner, shared, facts, stage: Stage::Rest, layer: None }, stopwatch)
    }

    fn is_on(&self) -> bool {
        self.shared.is_on.load(Ordering::Relaxed)
    }

    /// Whether ops are recorded part by part, as the host runs them; devices that
    /// count their kernels have some of their own for the whole.
    fn records_parts(&self) -> bool {
        self.is_on() && self.inner.counters().is_none()
    }

    /// Runs an op; `work` says what it has to do, if that is recorded.
    fn time<T>(
        &mut self,
        op: &'static str,
        work: impl FnOnce(&Facts) -> Work,
        run: impl FnOnce(&mut dyn Backend) -> T,
    ) -> T {
        if !self.is_on() {
            return run(self.inner.as_mut());
        }
        let start = Instant::now();
        let out = run(self.inner.as_mut());
        self.record(op, work, start);
        out
    }

    /// Notes an op that began then and ends now.
    fn record(&mut self, op: &'static str, work: impl FnOnce(&Facts) -> Work, start: Instant) {
        let end = Instant::now();
        let Work { weights, rows, bytes, macs, shared_bytes } = work(&self.facts);
        let nanoseconds = (end - start).as_nanos() as u64;
        let mut recording = lock(&self.shared.recording);
        let (stage, layer) = (self.stage, self.layer);
        let span = StageSpan { stage, layer, start, end };
        let sample = OpSample { nanoseconds, bytes, macs };
        recording.add(OpKey { op, weights, rows }, sample, span);
        let shared = nanoseconds * shared_bytes / bytes.max(1);
        recording.add_stage(stage, layer, nanoseconds - shared);
        if shared > 0 {
            recording.add_stage(Stage::SharedExpert, layer, shared);
        }
    }
}

impl Facts {
    fn weight(&self, weight: Weight) -> &WeightFacts {
        &self.weights[weight.0 as usize]
    }

    fn products(&self, rows: usize, weights: &[Weight]) -> Work {
        let mut work = Work { weights: weights.to_vec(), rows, ..Work::default() };
        for weight in weights {
            let weight = self.weight(*weight);
            work.bytes += weight.bytes();
            work.macs += (rows * weight.rows * weight.cols) as u64;
        }
        work
    }

    fn projections(&self, rows: usize, outputs: &[Projection], stage: Stage) -> Work {
        let weights: Vec<Weight> = outputs.iter().map(|it| it.weight).collect();
        let mut work = self.products(rows, &weights);
        let is_other = |it: &&Projection| self.router.is_some_and(|router| router != it.out);
        if stage == Stage::Router {
            let others = outputs.iter().filter(is_other);
            work.shared_bytes = others.map(|it| self.weight(it.weight).bytes()).sum();
        }
        work
    }

    fn cache(&self, sequence: Sequence, cache: Cache) -> CacheSpec {
        self.sequences[sequence.0 as usize][cache.0 as usize]
    }

    fn attention(&self, op: &Attention, spans: &[Span]) -> Work {
        let mut work = Work { rows: n_rows(spans), ..Work::default() };
        let v_dim = op.v.map_or(op.out.head_dim, |it| it.head_dim);
        for span in spans {
            let end = span.position + span.rows.len();
            let seen = |at: usize| at.min(op.window.unwrap_or(usize::MAX));
            let pairs: u64 = (span.position..end).map(|at| seen(at + 1) as u64).sum();
            work.macs += pairs * (op.q.n_heads * (op.q.head_dim + v_dim)) as u64;
            let spec = self.cache(span.sequence, op.cache);
            let first = span.position.saturating_sub(seen(span.position + 1) - 1);
            work.bytes += ((end - first) * spec.bytes_per_position()) as u64;
        }
        work
    }

    /// Every row multiplies the state with its key, adds a product to it and
    /// multiplies it with the query; the state is read and written once.
    fn delta(&self, op: &DeltaRule, spans: &[Span]) -> Work {
        let mut work = Work { rows: n_rows(spans), ..Work::default() };
        for span in spans {
            let state = self.cache(span.sequence, op.cache).fixed_bytes() as u64;
            work.bytes += 2 * state;
            work.macs += 3 * state / 4 * span.rows.len() as u64;
        }
        work
    }
}

fn n_rows(spans: &[Span]) -> usize {
    spans.last().map_or(0, |it| it.rows.end)
}

/// Reads and writes that many columns.
fn touches(rows: usize, n_reads: usize, cols: usize) -> Work {
    Work { rows, bytes: ((n_reads + 1) * rows * cols * 4) as u64, ..Work::default() }
}

fn all(heads: Heads) -> usize {
    heads.n_heads * heads.head_dim
}

fn experts(op: &Experts<'_>) -> Work {
    let mut work = Work::default();
    for call in op.calls {
        let layout = &call.expert.layout;
        let elements: usize = layout.matrices().map(|it| it.rows * it.cols).sum();
        work.rows += call.rows.len();
        work.bytes += layout.record_bytes() as u64;
        work.macs += (elements * call.rows.len()) as u64;
    }
    work
}

impl Backend for Timed {
    fn begin_stage(&mut self, stage: Stage, layer: Option<u16>) {
        (self.stage, self.layer) = (stage, layer);
        self.inner.begin_stage(stage, layer);
    }

    fn alloc(&mut self, rows: usize, width: usize) -> Buf {
        self.inner.alloc(rows, width)
    }

    fn host_alloc(&self, len: usize) -> HostBuf {
        self.inner.host_alloc(len)
    }

    fn load_matrix(&mut self, matrix: HostMatrix) -> Weight {
        let HostMatrix { rows, cols, format, inputs, .. } = matrix;
        let weight = self.inner.load_matrix(matrix);
        let facts = WeightFacts { rows, cols, format, inputs };
        assert_eq!(weight.0 as usize, self.facts.weights.len(), "matrices are numbered from zero");
        self.facts.weights.push(facts);
        lock(&self.shared.weights).push(facts);
        weight
    }

    fn load_vector(&mut self, values: &[f32]) -> Vector {
        self.inner.load_vector(values)
    }

    fn load_rope(&mut self, spec: RopeSpec) -> Rope {
        self.inner.load_rope(spec)
    }

    fn new_selection(&mut self) -> Selection {
        self.inner.new_selection()
    }

    fn write(&mut self, buf: Buf, values: &[f32]) {
        self.inner.write(buf, values);
    }

    fn read(&mut self, buf: Buf, rows: usize) -> Result<Vec<f32>, DeviceError> {
        self.inner.read(buf, rows)
    }

    fn new_sequence(&mut self, specs: &[CacheSpec]) -> Sequence {
        let sequence = self.inner.new_sequence(specs);
        let at = sequence.0 as usize;
        if self.facts.sequences.len() <= at {
            self.facts.sequences.resize(at + 1, Vec::new());
        }
        self.facts.sequences[at] = specs.to_vec();
        sequence
    }

    fn clear_sequence(&mut self, sequence: Sequence) {
        self.inner.clear_sequence(sequence);
    }

    fn drop_sequence(&mut self, sequence: Sequence) {
        self.inner.drop_sequence(sequence);
    }

    fn truncate_sequence(&mut self, sequence: Sequence, len: usize) {
        self.inner.truncate_sequence(sequence, len);
    }

    fn reserve_states(&mut self, sequence: Sequence) -> bool {
        self.inner.reserve_states(sequence)
    }

    fn keep_states(&mut self, keep: &[Keep]) {
        self.inner.keep_states(keep);
    }

    fn swap_states(&mut self, one: Sequence, other: Sequence) {
        self.inner.swap_states(one, other);
    }

    fn save_cache(
        &mut self,
        sequence: Sequence,
        cache: Cache,
        positions: Range<usize>,
    ) -> Result<Vec<u8>, DeviceError> {
        self.inner.save_cache(sequence, cache, positions)
    }

    fn load_cache(
        &mut self,
        sequence: Sequence,
        cache: Cache,
        positions: Range<usize>,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        self.inner.load_cache(sequence, cache, positions, bytes)
    }

    fn embed(&mut self, out: Cols, table: Weight, tokens: &[TokenId]) {
        let work = |facts: &Facts| {
            let table = facts.weight(table);
            let bytes = tokens.len() as u64 * table.bytes() / table.rows.max(1) as u64;
            Work { rows: tokens.len(), bytes, ..Work::default() }
        };
        self.time("embed", work, |it| it.embed(out, table, tokens));
    }

    fn rms_norm(&mut self, rows: usize, op: RmsNorm) {
        self.time("rms_norm", |_| touches(rows, 1, all(op.x)), |it| it.rms_norm(rows, op));
    }

    fn gated_rms_norm(&mut self, rows: usize, op: GatedRmsNorm) {
        let work = |_: &Facts| touches(rows, 2, all(op.norm.x));
        self.time("gated_rms_norm", work, |it| it.gated_rms_norm(rows, op));
    }

    fn layer_norm(&mut self, rows: usize, op: LayerNorm) {
        self.time("layer_norm", |_| touches(rows, 1, all(op.x)), |it| it.layer_norm(rows, op));
    }

    fn copy(&mut self, rows: usize, out: Heads, x: Heads) {
        self.time("copy", |_| touches(rows, 1, all(x)), |it| it.copy(rows, out, x));
    }

    fn head_product(&mut self, rows: usize, op: HeadProduct) {
        let work = |facts: &Facts| {
            let weight = facts.weight(op.weight);
            let used = (op.x.n_heads * op.x.head_dim * op.out.head_dim) as u64;
            let whole = (weight.rows * weight.cols).max(1) as u64;
            let bytes = (weight.bytes() as u128 * u128::from(used) / u128::from(whole)) as u64;
            let weights = vec![op.weight];
            Work { weights, rows, bytes, macs: used * rows as u64, shared_bytes: 0 }
        };
        self.time("head_product", work, |it| it.head_product(rows, op));
    }

    fn project(&mut self, rows: usize, x: Cols, outputs: &[Projection]) {
        let stage = self.stage;
        let work = |facts: &Facts| facts.projections(rows, outputs, stage);
        self.time("project", work, |it| it.project(rows, x, outputs));
    }

    fn rope(&mut self, x: Heads, rope: Rope, spans: &[Span]) {
        let work = |_: &Facts| touches(n_rows(spans), 1, all(x));
        self.time("rope", work, |it| it.rope(x, rope, spans));
    }

    fn select_positions(&mut self, op: SelectPositions, spans: &[Span]) {
        let work = |_: &Facts| Work { rows: n_rows(spans), ..Work::default() };
        self.time("select_positions", work, |it| it.select_positions(op, spans));
    }

    fn attention(&mut self, op: Attention, spans: &[Span]) {
        let work = |facts: &Facts| facts.attention(&op, spans);
        self.time("attention", work, |it| it.attention(op, spans));
    }

    fn gated_attention(&mut self, op: GatedAttention, spans: &[Span]) {
        if self.records_parts() {
            return op.run_parts(self, spans);
        }
        let work = |facts: &Facts| facts.attention(&op.attention, spans);
        self.time("gated_attention", work, |it| it.gated_attention(op, spans));
    }

    fn sigmoid_gate(&mut self, rows: usize, x: Heads, gate: Heads) {
        let work = |_: &Facts| touches(rows, 2, all(x));
        self.time("sigmoid_gate", work, |it| it.sigmoid_gate(rows, x, gate));
    }

    fn causal_conv(&mut self, op: CausalConv, spans: &[Span]) {
        let work = |_: &Facts| touches(n_rows(spans), 1, op.x.len);
        self.time("causal_conv", work, |it| it.causal_conv(op, spans));
    }

    fn delta_rule(&mut self, op: DeltaRule, spans: &[Span]) {
        let work = |facts: &Facts| facts.delta(&op, spans);
        self.time("delta_rule", work, |it| it.delta_rule(op, spans));
    }

    fn delta_net(&mut self, op: DeltaNet, spans: &[Span]) {
        if self.records_parts() {
            return op.run_parts(self, spans);
        }
        let work = |facts: &Facts| facts.delta(&op.delta, spans);
        self.time("delta_net", work, |it| it.delta_net(op, spans));
    }

    fn add_bias(&mut self, rows: usize, acc: Cols, bias: Vector) {
        self.time("add_bias", |_| touches(rows, 1, acc.len), |it| it.add_bias(rows, acc, bias));
    }

    fn add(&mut self, rows: usize, acc: Cols, x: Cols) {
        self.time("add", |_| touches(rows, 2, acc.len), |it| it.add(rows, acc, x));
    }

    fn swiglu(&mut self, rows: usize, out: Cols, gate: Cols, up: Cols) {
        let work = |_: &Facts| touches(rows, 2, out.len);
        self.time("swiglu", work, |it| it.swiglu(rows, out, gate, up));
    }

    fn experts(&mut self, op: Experts<'_>) {
        self.time("experts", |_| experts(&op), |it| it.experts(op));
    }

    fn combine(&mut self, rows: usize, op: Combine<'_>) {
        let work = |_: &Facts| touches(rows, op.top_k + 1, op.acc.len);
        self.time("combine", work, |it| it.combine(rows, op));
    }

    fn holds_expert(&self, layer: LayerIdx, expert: ExpertId) -> bool {
        self.inner.holds_expert(layer, expert)
    }

    fn held_experts(&mut self, op: HeldExperts<'_>) {
        let rows = op.calls.iter().map(|it| it.1.len()).sum();
        let work = |_: &Facts| touches(rows, 1, op.op.x.len);
        self.time("held_experts", work, |it| it.held_experts(op));
    }

    fn take_moves(&mut self) -> Vec<(ExpertKey, bool)> {
        self.inner.take_moves()
    }

    fn counters(&self) -> Option<Arc<DeviceCounters>> {
        self.inner.counters()
    }

    fn time_kernels(&mut self, is_on: bool) -> Result<Vec<KernelTime>, DeviceError> {
        self.inner.time_kernels(is_on)
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn let_go(&mut self, at_most: usize) {
        self.inner.let_go(at_most);
    }

    fn begin_experts(
        &mut self,
        layer: LayerIdx,
        held: &[(ExpertId, Vec<ExpertRow>)],
        experts: &mut dyn Iterator<Item = &Arc<Expert>>,
    ) {
        self.inner.begin_experts(layer, held, experts);
    }

    fn has_room_for_experts(&mut self, all: AllExperts) -> bool {
        self.inner.has_room_for_experts(all)
    }

    fn note_shared_expert(&mut self, layer: LayerIdx, projections: [Weight; 3]) {
        self.inner.note_shared_expert(layer, projections);
    }

    fn keep_expert(&mut self, expert: &Arc<Expert>, n_experts: usize) -> bool {
        self.inner.keep_expert(expert, n_experts)
    }

    fn drop_experts(&mut self) {
        self.inner.drop_experts();
    }

    fn holds_layer(&self, layer: LayerIdx, rows: usize) -> bool {
        self.inner.holds_layer(layer, rows)
    }

    fn routed_experts(&mut self, rows: usize, op: RoutedExperts) {
        let work = |_: &Facts| touches(rows, op.route.top_k + 1, op.acc.len);
        self.time("routed_experts", work, |it| it.routed_experts(rows, op));
    }

    fn route(&mut self, rows: usize, op: Route) -> Result<Routing, DeviceError> {
        self.facts.router = Some(op.logits);
        self.time("route", |_| touches(rows, 0, op.logits.len), |it| it.route(rows, op))
    }

    fn route_into(&mut self, rows: usize, op: Route, out: &mut Routing) -> Result<(), DeviceError> {
        self.facts.router = Some(op.logits);
        self.time("route", |_| touches(rows, 0, op.logits.len), |it| it.route_into(rows, op, out))
    }

    fn logits(
        &mut self,
        rows: &[usize],
        x: Cols,
        head: Weight,
        mut beside: Beside<'_>,
    ) -> Result<Vec<f32>, DeviceError> {
        beside.ahead.take_if(|_| self.is_on());
        let work = |facts: &Facts| facts.products(rows.len(), &[head]);
        self.time("logits", work, |it| it.logits(rows, x, head, beside))
    }

    fn leaders(
        &mut self,
        rows: &[usize],
        n: usize,
        x: Cols,
        head: Weight,
        mut beside: Beside<'_>,
    ) -> Result<Option<Vec<Vec<Leader>>>, DeviceError> {
        beside.ahead.take_if(|_| self.is_on());
        let start = Instant::now();
        let leaders = self.inner.leaders(rows, n, x, head, beside);
        // Who finds none has done nothing.
        if self.is_on() && !matches!(leaders, Ok(None)) {
            self.record("logits", |facts| facts.products(rows.len(), &[head]), start);
        }
        leaders
    }

    fn run_ahead(&mut self, tokens: &[TokenId]) -> bool {
        self.inner.run_ahead(tokens)
    }

    fn drop_ahead(&mut self) {
        self.inner.drop_ahead();
    }
}

#[cfg(test)]
mod tests;
