//! The backend: each op, handed to the file that computes it.

use std::ops::Range;
use std::sync::Arc;

use moeflux_backend::{
    ActivationPrecision, Attention, Backend, BlendStreams, Buf, Cache, CacheSpec, CausalConv, Cols,
    Combine, DeltaNet, DeltaRule, DeviceCounters, DeviceError, ExpertResidency, Experts,
    GatedActivation, GatedAttention, GatedRmsNorm, HeadProduct, Heads, HostMatrix, JoinStreams,
    KernelTime, KeysValues, LayerNorm, LogitsExtras, MixStreams, MoeOnDevice, Ops, PlainActivation,
    PoolEntries, Projection, Recording, ResidencyChange, ResidencyRequest, ResidentCall,
    ResidentExperts, RmsNorm, Rope, RopeSpec, Route, Routing, SelectPositions, Selection, Sequence,
    Sequences, SimilarityGate, Span, StateSnapshot, StateSpace, StreamShares, TokenLogit, Vector,
    WeighStreams, Weight,
};
use moeflux_core::quant::MatrixView;
use moeflux_core::{
    Expert, ExpertId, ExpertKey, ExpertLayout, ExpertParts, HostBuf, LayerIdx, TokenId,
};

use crate::commands::prerecord;
use crate::commands::read::{begin_read, finish_read};
use crate::commands::timing::time_kernels;
use crate::commands::upload::release_experts;
use crate::device::adapter::free_bytes;
use crate::device::allocated_ahead::AllocatedAhead;
use crate::device::context::Context;
use crate::device::work::Work;
use crate::memory::caches::cache::CacheState;
use crate::memory::caches::state_slots::NumberedCache;
use crate::memory::experts::slots::reserve_ahead;
use crate::memory::weights::host_buffers::HostBuffers;
use crate::ops;
use crate::self_test::coop_matrix::best_tiles;
use crate::state::gpu::{Activations, Wgpu};
use crate::state::mask::Mask;
use crate::state::prerecorded;
use crate::state::rope_table::RopeTables;
use crate::words::n_rows;

/// A backend on an opened device, which keeps at most `slot_bytes` of routed experts there, or as many
/// as it has memory for. With 0 bytes one that shares the host's memory reads them there.
pub fn new_backend(context: Arc<Context>, slot_bytes: Option<u64>) -> Wgpu {
    let tiles = best_tiles(&context);
    Wgpu::with_tiles(context, slot_bytes, tiles)
}

fn part(buf: &Option<HostBuf>, len: usize) -> &[u8] {
    buf.as_ref().map_or(&[][..], |buf| &buf[..len])
}

/// What it is to bring states forward by the rows of spans: each float decays, takes part in two sums
/// and is added to, eight operations in all.
fn of_states(n_floats: usize, spans: &[Span]) -> Work {
    let flops = (8 * n_floats * n_rows(spans)) as u64;
    Work { bytes: (8 * n_floats * spans.len()) as u64, flops }
}

impl Backend for Wgpu {
    fn residency(&self) -> Option<&dyn ExpertResidency> {
        Some(self)
    }

    fn residency_mut(&mut self) -> Option<&mut dyn ExpertResidency> {
        Some(self)
    }

    fn recording(&mut self) -> Option<&mut dyn Recording> {
        Some(self)
    }
}

impl Ops for Wgpu {
    fn alloc(&mut self, rows: usize, width: usize) -> Buf {
        assert!(width > 0, "a buffer has columns");
        let bytes = 4 * (rows * width) as u64;
        let mem = self.encoder.buffers.lasting_storage(bytes, "activations");
        self.bufs.push(Activations { mem, width, version: 0, wanted: None });
        Buf(u32::try_from(self.bufs.len() - 1).expect("few buffers"))
    }

    fn host_alloc(&self, len: usize) -> HostBuf {
        self.spare.take(len)
    }

    fn load_matrix(&mut self, matrix: HostMatrix) -> Weight {
        let HostMatrix { rows, cols, format, inputs, weight, scales, biases } = &matrix;
        let (rows, cols, format) = (*rows, *cols, *format);
        let view = MatrixView {
            rows,
            cols,
            format,
            weight: &weight[..rows * format.row_bytes(cols)],
            scales: part(scales, format.scale_bytes(rows, cols)),
            biases: part(biases, format.bias_bytes(rows, cols)),
        };
        view.assert_sizes();
        self.matrices.push(self.slabs.load(&mut self.encoder, &view, *inputs));
        self.spare.give(matrix);
        Weight(u32::try_from(self.matrices.len() - 1).expect("few matrices"))
    }

    fn load_vector(&mut self, values: &[f32]) -> Vector {
        let mem = self.encoder.buffers.lasting_storage(4 * values.len() as u64, "vector");
        self.encoder.write(&mem, 0, bytemuck::cast_slice(values));
        self.vectors.push(mem);
        Vector(u32::try_from(self.vectors.len() - 1).expect("few vectors"))
    }

    fn load_rope(&mut self, spec: RopeSpec) -> Rope {
        self.ropes.push(RopeTables::new(spec));
        Rope(u32::try_from(self.ropes.len() - 1).expect("few tables"))
    }

    fn set_attention_inputs(&mut self, inputs: ActivationPrecision) {
        self.attention_inputs = inputs;
    }

    fn new_selection(&mut self) -> Selection {
        self.selections.push(Mask::default());
        Selection(u32::try_from(self.selections.len() - 1).expect("few selections"))
    }

    fn write(&mut self, buf: Buf, values: &[f32]) {
        let mem = self.written(buf).mem;
        self.encoder.write(&mem, 0, bytemuck::cast_slice(values));
    }

    fn write_rows(&mut self, buf: Buf, first: usize, values: &[f32]) {
        let Activations { mem, width, .. } = self.written(buf);
        let offset = 4 * (first * width) as u64;
        self.encoder.write(&mem, offset, bytemuck::cast_slice(values));
    }

    fn read(&mut self, buf: Buf, rows: usize) -> Result<Vec<f32>, DeviceError> {
        let Activations { mem, width, .. } = self.buf(buf).clone();
        let asked = begin_read(&mut self.encoder, &[mem.range(0, 4 * (rows * width) as u64)])?;
        finish_read(&mut self.encoder, asked, crate::words::floats)
    }

    fn embed(&mut self, out: Cols, table: Weight, tokens: &[TokenId]) {
        ops::embed(self, out, table, tokens);
    }

    fn rms_norm(&mut self, rows: usize, op: RmsNorm) {
        ops::rms_norm(self, rows, op);
    }

    fn gated_rms_norm(&mut self, rows: usize, op: GatedRmsNorm) {
        ops::gated_rms_norm(self, rows, op);
    }

    fn layer_norm(&mut self, rows: usize, op: LayerNorm) {
        ops::layer_norm(self, rows, op);
    }

    fn copy(&mut self, rows: usize, out: Heads, x: Heads) {
        if out != x {
            ops::copy(self, rows, out, x);
        }
    }

    fn join_rows(&mut self, rows: usize, out: Cols, x: Cols) {
        ops::join_rows(self, rows, out, x);
    }

    fn head_product(&mut self, rows: usize, op: HeadProduct) {
        let cols = op.x.head_dim;
        let row_bytes = self.matrix(op.weight).decoder.row_bytes(cols);
        let work = Work::product(op.out.n_heads * op.out.head_dim, row_bytes, cols, rows);
        self.encoder.go_on(work);
        ops::head_product(self, rows, op);
    }

    fn project(&mut self, rows: usize, x: Cols, outputs: &[Projection]) {
        ops::project(self, rows, x, outputs);
    }

    fn rope(&mut self, x: Heads, rope: Rope, spans: &[Span]) {
        ops::rope(self, x, rope, spans);
    }

    fn select_positions(&mut self, op: SelectPositions, spans: &[Span]) {
        ops::select_positions(self, op, spans);
    }

    fn pool_entries(&mut self, op: PoolEntries, spans: &[Span]) {
        ops::pool_entries(self, op, spans);
    }

    fn append(&mut self, cache: Cache, append: KeysValues, spans: &[Span]) {
        ops::append(self, cache, append, spans);
    }

    fn attention(&mut self, op: Attention, spans: &[Span]) {
        ops::attention(self, op, spans);
    }

    fn gated_attention(&mut self, op: GatedAttention, spans: &[Span]) {
        ops::gated_attention(self, op, spans);
    }

    fn sigmoid_gate(&mut self, rows: usize, x: Heads, gate: Heads) {
        ops::sigmoid_gate(self, rows, x, gate);
    }

    fn causal_conv(&mut self, op: CausalConv, spans: &[Span]) {
        ops::causal_conv(self, op, spans);
    }

    fn delta_rule(&mut self, op: DeltaRule, spans: &[Span]) {
        self.encoder.go_on(of_states(op.out.n_heads * op.out.head_dim * op.k.head_dim, spans));
        ops::delta_rule(self, op, spans);
    }

    fn delta_net(&mut self, op: DeltaNet, spans: &[Span]) {
        self.encoder.go_on(of_states(
            op.delta.out.n_heads * op.delta.out.head_dim * op.delta.k.head_dim,
            spans,
        ));
        ops::delta_net(self, op, spans);
    }

    fn state_space(&mut self, op: StateSpace, spans: &[Span]) {
        self.encoder.go_on(of_states(op.x.n_heads * op.b.head_dim * op.x.head_dim, spans));
        ops::state_space(self, op, spans);
    }

    fn add_bias(&mut self, rows: usize, acc: Cols, bias: Vector) {
        ops::add_bias(self, rows, acc, bias);
    }

    fn add(&mut self, rows: usize, acc: Cols, x: Cols) {
        ops::add(self, rows, acc, x);
    }

    fn scale(&mut self, rows: usize, x: Cols, factor: f32) {
        ops::scale(self, rows, x, factor);
    }

    fn scaled_silu(&mut self, rows: usize, x: Cols, factor: f32) {
        ops::scaled_silu(self, rows, x, factor);
    }

    fn mix_streams(&mut self, rows: usize, op: MixStreams) {
        ops::mix_streams(self, rows, op);
    }

    fn stream_shares(&mut self, rows: usize, op: StreamShares) {
        ops::stream_shares(self, rows, op);
    }

    fn weigh_streams(&mut self, rows: usize, op: WeighStreams) {
        ops::weigh_streams(self, rows, op);
    }

    fn blend_streams(&mut self, rows: usize, op: BlendStreams) {
        ops::blend_streams(self, rows, op);
    }

    fn join_streams(&mut self, rows: usize, op: JoinStreams) {
        ops::join_streams(self, rows, op);
    }

    fn similarity_gate(&mut self, rows: usize, op: SimilarityGate) {
        ops::similarity_gate(self, rows, op);
    }

    fn activate(
        &mut self,
        rows: usize,
        activation: GatedActivation,
        out: Cols,
        gate: Cols,
        up: Cols,
    ) {
        ops::activate(self, rows, activation, out, gate, up);
    }

    fn activate_plain(&mut self, rows: usize, activation: PlainActivation, x: Cols) {
        ops::activate_plain(self, rows, activation, x);
    }

    fn experts(&mut self, op: Experts<'_>) {
        ops::experts(self, op);
    }

    fn combine(&mut self, rows: usize, op: Combine<'_>) {
        ops::combine(self, rows, op);
    }

    fn route(&mut self, rows: usize, op: Route) -> Result<Routing, DeviceError> {
        ops::route(self, rows, op)
    }

    fn logits(
        &mut self,
        rows: &[usize],
        x: Cols,
        head: Weight,
        extras: LogitsExtras<'_>,
    ) -> Result<Vec<f32>, DeviceError> {
        ops::logits(self, rows, x, head, extras)
    }

    fn top_logits(
        &mut self,
        rows: &[usize],
        n: usize,
        x: Cols,
        head: Weight,
        extras: LogitsExtras<'_>,
    ) -> Result<Option<Vec<Vec<TokenLogit>>>, DeviceError> {
        ops::top_logits(self, rows, n, x, head, extras)
    }
}

impl Sequences for Wgpu {
    fn new_sequence(&mut self, specs: &[CacheSpec]) -> Sequence {
        let numbered = (0..).zip(specs).map(|(nth, spec)| NumberedCache { nth, spec: *spec });
        let caches = numbered.map(|cache| CacheState::new(&mut self.pools, cache)).collect();
        let free = self.sequences.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            self.sequences.push(None);
            self.sequences.len() - 1
        });
        self.sequences[at] = Some(caches);
        Sequence(u32::try_from(at).expect("few sequences"))
    }

    fn clear_sequence(&mut self, sequence: Sequence) {
        prerecorded::discard(self);
        let mut caches = self.caches(sequence);
        caches.iter_mut().for_each(|cache| cache.clear(&mut self.encoder, &mut self.pools));
        self.sequences[sequence.0 as usize] = Some(caches);
    }

    fn drop_sequence(&mut self, sequence: Sequence) {
        prerecorded::discard(self);
        let caches = self.caches(sequence).into_iter();
        caches.for_each(|cache| cache.release(&mut self.encoder, &mut self.pools));
    }

    fn truncate_sequence(&mut self, sequence: Sequence, len: usize) {
        let mut caches = self.caches(sequence);
        caches.iter_mut().for_each(|cache| cache.truncate(&mut self.encoder, &mut self.pools, len));
        self.sequences[sequence.0 as usize] = Some(caches);
    }

    fn forget_passed(&mut self, sequence: Sequence, ends: &[usize]) {
        let mut caches = self.caches(sequence);
        let caches_mut = caches.iter_mut();
        caches_mut.for_each(|cache| cache.forget_passed(&mut self.encoder, &mut self.pools, ends));
        self.sequences[sequence.0 as usize] = Some(caches);
    }

    fn reserve_states(&mut self, sequence: Sequence) -> bool {
        // Slabs may grow.
        prerecorded::discard(self);
        let Wgpu { encoder, pools, sequences, .. } = self;
        let caches = sequences[sequence.0 as usize].iter_mut().flatten();
        caches.into_iter().all(|cache| cache.reserve(encoder, pools))
    }

    fn snapshot_states(&mut self, snapshots: &[StateSnapshot]) {
        if !snapshots.is_empty() {
            prerecorded::discard(self);
        }
        self.keep = snapshots.to_vec();
    }

    fn swap_states(&mut self, one: Sequence, other: Sequence) {
        prerecorded::discard(self);
        let at = [one, other].map(|sequence| sequence.0 as usize);
        let [one, other] = self.sequences.get_disjoint_mut(at).expect("two sequences that exist");
        for (one, other) in one.iter_mut().flatten().zip(other.iter_mut().flatten()) {
            if matches!(one, CacheState::Recurrent(_)) {
                std::mem::swap(one, other);
            }
        }
    }

    fn save_cache(
        &mut self,
        sequence: Sequence,
        cache: Cache,
        positions: Range<usize>,
    ) -> Result<Vec<u8>, DeviceError> {
        let caches = self.sequences[sequence.0 as usize].as_ref();
        let state = &caches.expect("the sequence exists")[cache.0 as usize];
        state.save(&mut self.encoder, &self.pools, positions)
    }

    fn load_cache(
        &mut self,
        sequence: Sequence,
        cache: Cache,
        positions: Range<usize>,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        // Slabs may grow.
        prerecorded::discard(self);
        let caches = self.sequences[sequence.0 as usize].as_mut();
        let state = &mut caches.expect("the sequence exists")[cache.0 as usize];
        state.load(&mut self.encoder, &mut self.pools, positions, bytes)
    }
}

impl ExpertResidency for Wgpu {
    fn plan(&mut self, request: ResidencyRequest) -> bool {
        // All dense weights are there, and all layers are reserved that are going to be.
        self.spare = HostBuffers::default();
        self.encoder.ahead = AllocatedAhead::default();
        self.slots.plan(&self.encoder, request)
    }

    fn register_shared(&mut self, layer: LayerIdx, projections: ExpertParts<Weight>) {
        if self.fuses {
            let matrices = projections.into_iter().map(|weight| self.matrix(weight).clone());
            let matrices = matrices.collect();
            self.slots.register_shared(layer, matrices);
        }
    }

    fn reserve_ahead(
        &mut self,
        layers: &mut dyn Iterator<Item = (&Arc<ExpertLayout>, usize)>,
        others: u64,
    ) {
        let layers: Vec<(&Arc<ExpertLayout>, usize)> = layers.collect();
        let bytes = |(layout, n): &(&Arc<ExpertLayout>, usize)| (n + 1) * layout.record_bytes();
        let all = layers.iter().map(bytes).sum::<usize>() as u64;
        // An eighth for padding.
        let wanted = all.saturating_add(all / 8).saturating_add(others);
        let free = free_bytes(self.encoder.context().facts());
        if self.slots.may_take(all) && free.is_some_and(|free| wanted <= free / 10 * 9) {
            reserve_ahead(&mut self.encoder, &mut layers.into_iter());
        }
    }

    fn reserve(&mut self, layer: LayerIdx, layout: &Arc<ExpertLayout>, n_experts: usize) -> bool {
        self.slots.reserve(&mut self.encoder, layer, layout, n_experts)
    }

    fn load(&mut self, expert: &Arc<Expert>, n_experts: usize) -> bool {
        self.slots.load(&mut self.encoder, expert, n_experts)
    }

    fn unload_all(&mut self) {
        self.slots.unload_all(&mut self.encoder);
    }

    fn is_resident(&self, layer: LayerIdx, expert: ExpertId) -> bool {
        self.slots.holds(ExpertKey { layer, expert })
    }

    fn is_layer_resident(&self, layer: LayerIdx, rows: usize) -> bool {
        self.slots.can_route(layer, rows)
    }

    fn begin_upload(
        &mut self,
        layer: LayerIdx,
        resident: &[ResidentCall],
        experts: &mut dyn Iterator<Item = &Arc<Expert>>,
    ) {
        let resident = resident.iter().map(|call| ExpertKey { layer, expert: call.expert });
        ops::begin_upload(self, resident, experts);
    }

    fn resident_experts(&mut self, op: ResidentExperts<'_>) {
        ops::resident_experts(self, op);
    }

    fn moe_on_device(&mut self, rows: usize, op: MoeOnDevice) {
        ops::moe_on_device(self, rows, op);
    }

    fn release_experts(&mut self, max_held: usize) {
        release_experts(&mut self.encoder, max_held);
    }

    fn drain_residency_changes(&mut self) -> Vec<ResidencyChange> {
        self.slots.drain_residency_changes()
    }

    fn counters(&self) -> Arc<DeviceCounters> {
        Arc::clone(&self.encoder.counters)
    }
}

impl Recording for Wgpu {
    fn time_kernels(&mut self, is_on: bool) -> Result<Vec<KernelTime>, DeviceError> {
        time_kernels(&mut self.encoder, is_on)
    }

    fn flush(&mut self) {
        self.encoder.flush();
    }

    fn replay_step(&mut self, tokens: &[TokenId]) -> bool {
        let tokens: Vec<u32> = tokens.iter().map(|token| token.0).collect();
        prerecord::replay(&mut self.encoder, &tokens)
    }

    fn discard_prerecorded(&mut self) {
        prerecorded::discard(self);
    }
}
