//! A backend wrapper that times every op.
//!
//! While the profiler is stopped, an op costs one more call and one branch.

mod profile;
mod work;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use moeflux_core::{Expert, ExpertId, ExpertLayout, ExpertParts, HostBuf, LayerIdx, TokenId};

pub use self::profile::{OpKey, OpProfile, OpSample, StageSpan, WeightFacts};
use self::work::{Facts, Work, all, experts, n_rows, touches};
use crate::{
    ActivationPrecision, Attention, Backend, BlendStreams, Buf, Cache, CacheSpec, CausalConv, Cols,
    Combine, DeltaNet, DeltaRule, DeviceCounters, DeviceError, ExpertResidency, Experts,
    GatedActivation, GatedAttention, GatedRmsNorm, HeadProduct, Heads, HostMatrix, JoinStreams,
    KeysValues, LayerNorm, LogitsExtras, MixStreams, MoeOnDevice, Ops, PlainActivation,
    PoolEntries, Projection, Recording, ResidencyChange, ResidencyRequest, ResidentCall,
    ResidentExperts, RmsNorm, Rope, RopeSpec, Route, Routing, SelectPositions, Selection, Sequence,
    Sequences, SimilarityGate, Span, Stage, StateSnapshot, StateSpace, StreamShares, TokenLogit,
    Vector, WeighStreams, Weight,
};

#[derive(Debug, Default)]
struct Shared {
    is_on: AtomicBool,
    profile: Mutex<OpProfile>,
    weights: Mutex<Vec<WeightFacts>>,
}

/// Starts and stops the timing of a [`ProfilingBackend`], from any thread.
#[derive(Clone, Debug, Default)]
pub struct Profiler(Arc<Shared>);

impl Profiler {
    /// Begins a new profile.
    pub fn start(&self) {
        *lock(&self.0.profile) = OpProfile::default();
        self.0.is_on.store(true, Ordering::Relaxed);
    }

    /// Ends the profile and returns it.
    pub fn stop(&self) -> OpProfile {
        self.0.is_on.store(false, Ordering::Relaxed);
        std::mem::take(&mut lock(&self.0.profile))
    }

    /// Every matrix loaded so far, indexed by [`Weight`].
    pub fn weights(&self) -> Vec<WeightFacts> {
        lock(&self.0.weights).clone()
    }
}

/// Locks a mutex also where a thread panicked while it held it: the values are whole at any
/// time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Forwards every call to another backend and times the ops.
pub struct ProfilingBackend {
    inner: Box<dyn Backend>,
    shared: Arc<Shared>,
    facts: Facts,
    stage: Stage,
    layer: Option<u16>,
}

impl ProfilingBackend {
    /// Wraps `inner`, which has loaded nothing yet.
    pub fn new(inner: Box<dyn Backend>) -> (ProfilingBackend, Profiler) {
        let shared = Arc::new(Shared::default());
        let profiler = Profiler(Arc::clone(&shared));
        let facts = Facts::default();
        (ProfilingBackend { inner, shared, facts, stage: Stage::Rest, layer: None }, profiler)
    }

    fn is_on(&self) -> bool {
        self.shared.is_on.load(Ordering::Relaxed)
    }

    /// Whether fused ops are timed part by part, as the host runs them. A device with
    /// memory of its own may have one kernel for the whole.
    fn records_parts(&self) -> bool {
        self.is_on() && self.inner.residency().is_none()
    }

    /// Runs an op. `work` computes its work, and is only called while the profiler runs.
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

    /// Records an op that began at `start` and ends now.
    fn record(&mut self, op: &'static str, work: impl FnOnce(&Facts) -> Work, start: Instant) {
        let end = Instant::now();
        let Work { weights, rows, bytes, macs, shared_bytes } = work(&self.facts);
        let nanoseconds = (end - start).as_nanos() as u64;
        let mut profile = lock(&self.shared.profile);
        let (stage, layer) = (self.stage, self.layer);
        let span = StageSpan { stage, layer, start, end };
        let sample = OpSample { nanoseconds, bytes, macs };
        profile.add(OpKey { op, weights, rows }, sample, span);
        let shared = nanoseconds * shared_bytes / bytes.max(1);
        profile.add_stage(stage, layer, nanoseconds - shared);
        if shared > 0 {
            profile.add_stage(Stage::SharedExpert, layer, shared);
        }
    }

    fn ops(&mut self) -> &mut dyn Backend {
        self.inner.as_mut()
    }

    fn resident(&self) -> &dyn ExpertResidency {
        self.inner.residency().expect("the wrapped backend has residency")
    }

    fn resident_mut(&mut self) -> &mut dyn ExpertResidency {
        self.inner.residency_mut().expect("the wrapped backend has residency")
    }
}

/// Methods that call the same method of the wrapped backend, which `$inner` borrows.
macro_rules! delegate {
    ($inner:ident: $(fn $name:ident($($arg:ident: $ty:ty),*) $(-> $out:ty)?;)*) => {$(
        fn $name(&mut self, $($arg: $ty),*) $(-> $out)? {
            self.$inner().$name($($arg),*)
        }
    )*};
}

/// Ops that run on the wrapped backend and are timed under the name of the method, each with
/// its work.
macro_rules! timed {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) = $work:expr;)*) => {$(
        fn $name(&mut self, $($arg: $ty),*) {
            self.time(stringify!($name), $work, |inner| inner.$name($($arg),*));
        }
    )*};
}

impl Backend for ProfilingBackend {
    fn begin_stage(&mut self, stage: Stage, layer: Option<u16>) {
        (self.stage, self.layer) = (stage, layer);
        self.inner.begin_stage(stage, layer);
    }

    fn residency(&self) -> Option<&dyn ExpertResidency> {
        self.inner.residency()?;
        Some(self)
    }

    fn residency_mut(&mut self) -> Option<&mut dyn ExpertResidency> {
        self.inner.residency_mut()?;
        Some(self)
    }

    fn recording(&mut self) -> Option<&mut dyn Recording> {
        self.inner.recording()
    }
}

impl Ops for ProfilingBackend {
    delegate! { ops:
        fn alloc(rows: usize, width: usize) -> Buf;
        fn load_vector(values: &[f32]) -> Vector;
        fn load_rope(spec: RopeSpec) -> Rope;
        fn set_attention_inputs(inputs: ActivationPrecision);
        fn new_selection() -> Selection;
        fn write(buf: Buf, values: &[f32]);
        fn write_rows(buf: Buf, first: usize, values: &[f32]);
        fn read(buf: Buf, rows: usize) -> Result<Vec<f32>, DeviceError>;
    }

    timed! {
        fn embed(out: Cols, table: Weight, tokens: &[TokenId]) =
            |facts| facts.embedding(tokens.len(), table);
        fn rms_norm(rows: usize, op: RmsNorm) = |_| touches(rows, 1, all(op.x));
        fn gated_rms_norm(rows: usize, op: GatedRmsNorm) =
            |_| touches(rows, 2, all(op.norm.x));
        fn layer_norm(rows: usize, op: LayerNorm) = |_| touches(rows, 1, all(op.x));
        fn copy(rows: usize, out: Heads, x: Heads) = |_| touches(rows, 1, all(x));
        fn join_rows(rows: usize, out: Cols, x: Cols) = |_| touches(rows, 1, out.len);
        fn head_product(rows: usize, op: HeadProduct) = |facts| facts.head_product(rows, &op);
        fn rope(x: Heads, rope: Rope, spans: &[Span]) =
            |_| touches(n_rows(spans), 1, all(x));
        fn select_positions(op: SelectPositions, spans: &[Span]) =
            |_| Work { rows: n_rows(spans), ..Work::default() };
        fn pool_entries(op: PoolEntries, spans: &[Span]) =
            |_| touches(n_rows(spans), 1, op.x.len);
        fn append(cache: Cache, append: KeysValues, spans: &[Span]) =
            |_| touches(n_rows(spans), 1, all(append.k));
        fn attention(op: Attention, spans: &[Span]) = |facts| facts.attention(&op, spans);
        fn sigmoid_gate(rows: usize, x: Heads, gate: Heads) = |_| touches(rows, 2, all(x));
        fn causal_conv(op: CausalConv, spans: &[Span]) =
            |_| touches(n_rows(spans), 1, op.x.len);
        fn delta_rule(op: DeltaRule, spans: &[Span]) = |facts| facts.delta(&op, spans);
        fn state_space(op: StateSpace, spans: &[Span]) = |facts| facts.state_space(&op, spans);
        fn add_bias(rows: usize, acc: Cols, bias: Vector) = |_| touches(rows, 1, acc.len);
        fn add(rows: usize, acc: Cols, x: Cols) = |_| touches(rows, 2, acc.len);
        fn scale(rows: usize, x: Cols, factor: f32) = |_| touches(rows, 1, x.len);
        fn scaled_silu(rows: usize, x: Cols, factor: f32) = |_| touches(rows, 1, x.len);
        fn mix_streams(rows: usize, op: MixStreams) = |_| touches(rows, 2, all(op.streams));
        fn join_streams(rows: usize, op: JoinStreams) = |_| touches(rows, 1, all(op.streams));
        fn stream_shares(rows: usize, op: StreamShares) = |_| touches(rows, 1, op.out.len);
        fn weigh_streams(rows: usize, op: WeighStreams) = |_| touches(rows, 1, all(op.streams));
        fn blend_streams(rows: usize, op: BlendStreams) = |_| touches(rows, 1, all(op.streams));
        fn similarity_gate(rows: usize, op: SimilarityGate) = |_| touches(rows, 2, all(op.a));
        fn activate(
            rows: usize, activation: GatedActivation, out: Cols, gate: Cols, up: Cols
        ) = |_| touches(rows, 2, out.len);
        fn activate_plain(rows: usize, activation: PlainActivation, x: Cols) =
            |_| touches(rows, 1, x.len);
        fn experts(op: Experts<'_>) = |_| experts(&op);
        fn combine(rows: usize, op: Combine<'_>) =
            |_| touches(rows, op.top_k + 1, op.acc.len);
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

    fn project(&mut self, rows: usize, x: Cols, outputs: &[Projection]) {
        let stage = self.stage;
        let work = |facts: &Facts| facts.projections(rows, outputs, stage);
        self.time("project", work, |inner| inner.project(rows, x, outputs));
    }

    fn gated_attention(&mut self, op: GatedAttention, spans: &[Span]) {
        if self.records_parts() {
            return op.run_parts(self, spans);
        }
        let work = |facts: &Facts| facts.attention(&op.attention, spans);
        self.time("gated_attention", work, |inner| inner.gated_attention(op, spans));
    }

    fn delta_net(&mut self, op: DeltaNet, spans: &[Span]) {
        if self.records_parts() {
            return op.run_parts(self, spans);
        }
        let work = |facts: &Facts| facts.delta(&op.delta, spans);
        self.time("delta_net", work, |inner| inner.delta_net(op, spans));
    }

    fn route(&mut self, rows: usize, op: Route) -> Result<Routing, DeviceError> {
        self.facts.router = Some(op.logits);
        let work = |_: &Facts| touches(rows, 0, op.logits.len);
        self.time("route", work, |inner| inner.route(rows, op))
    }

    fn route_into(&mut self, rows: usize, op: Route, out: &mut Routing) -> Result<(), DeviceError> {
        self.facts.router = Some(op.logits);
        let work = |_: &Facts| touches(rows, 0, op.logits.len);
        self.time("route", work, |inner| inner.route_into(rows, op, out))
    }

    fn logits(
        &mut self,
        rows: &[usize],
        x: Cols,
        head: Weight,
        mut extras: LogitsExtras<'_>,
    ) -> Result<Vec<f32>, DeviceError> {
        // The ops of a prerecorded step would not be timed.
        extras.next_step.take_if(|_| self.is_on());
        let work = |facts: &Facts| facts.products(rows.len(), &[head]);
        self.time("logits", work, |inner| inner.logits(rows, x, head, extras))
    }

    fn top_logits(
        &mut self,
        rows: &[usize],
        n: usize,
        x: Cols,
        head: Weight,
        mut extras: LogitsExtras<'_>,
    ) -> Result<Option<Vec<Vec<TokenLogit>>>, DeviceError> {
        extras.next_step.take_if(|_| self.is_on());
        let start = Instant::now();
        let top = self.inner.top_logits(rows, n, x, head, extras);
        // A backend that returns none has usually computed none.
        if self.is_on() && !matches!(top, Ok(None)) {
            self.record("logits", |facts| facts.products(rows.len(), &[head]), start);
        }
        top
    }
}

impl Sequences for ProfilingBackend {
    delegate! { ops:
        fn clear_sequence(sequence: Sequence);
        fn drop_sequence(sequence: Sequence);
        fn truncate_sequence(sequence: Sequence, len: usize);
        fn forget_passed(sequence: Sequence, ends: &[usize]);
        fn reserve_states(sequence: Sequence) -> bool;
        fn snapshot_states(snapshots: &[StateSnapshot]);
        fn swap_states(one: Sequence, other: Sequence);
        fn save_cache(sequence: Sequence, cache: Cache, positions: Range<usize>)
            -> Result<Vec<u8>, DeviceError>;
        fn load_cache(sequence: Sequence, cache: Cache, positions: Range<usize>, bytes: &[u8])
            -> Result<(), DeviceError>;
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
}

impl ExpertResidency for ProfilingBackend {
    delegate! { resident_mut:
        fn plan(request: ResidencyRequest) -> bool;
        fn register_shared(layer: LayerIdx, projections: ExpertParts<Weight>);
        fn reserve_ahead(layers: &mut dyn Iterator<Item = (&Arc<ExpertLayout>, usize)>, others: u64);
        fn reserve(layer: LayerIdx, layout: &Arc<ExpertLayout>, n_experts: usize) -> bool;
        fn load(expert: &Arc<Expert>, n_experts: usize) -> bool;
        fn unload_all();
        fn begin_upload(layer: LayerIdx, resident: &[ResidentCall],
            experts: &mut dyn Iterator<Item = &Arc<Expert>>);
        fn release_experts(max_held: usize);
        fn drain_residency_changes() -> Vec<ResidencyChange>;
    }

    fn is_resident(&self, layer: LayerIdx, expert: ExpertId) -> bool {
        self.resident().is_resident(layer, expert)
    }

    fn is_layer_resident(&self, layer: LayerIdx, rows: usize) -> bool {
        self.resident().is_layer_resident(layer, rows)
    }

    fn counters(&self) -> Arc<DeviceCounters> {
        self.resident().counters()
    }

    fn resident_experts(&mut self, op: ResidentExperts<'_>) {
        let rows = op.calls.iter().map(|call| call.rows.len()).sum();
        let work = |_: &Facts| touches(rows, 1, op.op.x.len);
        let start = Instant::now();
        self.resident_mut().resident_experts(op);
        if self.is_on() {
            self.record("resident_experts", work, start);
        }
    }

    fn moe_on_device(&mut self, rows: usize, op: MoeOnDevice) {
        let work = |_: &Facts| touches(rows, op.route.top_k + 1, op.acc.len);
        let start = Instant::now();
        self.resident_mut().moe_on_device(rows, op);
        if self.is_on() {
            self.record("moe_on_device", work, start);
        }
    }
}

#[cfg(test)]
mod tests;
