//! [`Wgpu`]: what lies behind the handles, and each op handed to its file.

use std::ops::Range;
use std::sync::Arc;

use moeflux_backend::{
    AllExperts, Attention, Backend, Beside, Buf, Cache, CacheSpec, CausalConv, Cols, Combine,
    DeltaNet, DeltaRule, DeviceCounters, DeviceError, ExpertRow, Experts, GatedAttention,
    GatedRmsNorm, HeadProduct, Heads, HeldExperts, HostMatrix, Keep, KernelTime, LayerNorm, Leader,
    Projection, RmsNorm, Rope, RopeSpec, Route, RoutedExperts, Routing, SelectPositions, Selection,
    Sequence, Span, Vector, Weight,
};
use moeflux_core::quant::MatrixView;
use moeflux_core::{Expert, ExpertId, ExpertKey, HostBuf, LayerIdx, TokenId};

use crate::ahead;
use crate::arena::{Matrix, Slabs};
use crate::caches::{CacheState, Pools, State};
use crate::context::Context;
use crate::encoder::{Encoder, Mem};
use crate::experts::Slots;
use crate::imports::Reach;
use crate::layout::{Form, Halves, Layout, Tiles};
use crate::ops::{self, LastSum, Mask, RopeTable, RoundedInputs, Scratch, Wanted};

const PART_BYTES: usize = 64 << 20;

/// Rows of `f32`.
#[derive(Clone, Debug)]
pub(crate) struct Activations {
    pub(crate) mem: Mem,
    pub(crate) width: usize,
    /// Grows with every write.
    pub(crate) version: u64,
    /// How products wanted it rounded the last time.
    pub(crate) wanted: Option<Wanted>,
}

/// A GPU and everything resident on it.
#[derive(Debug)]
pub struct Wgpu {
    pub(crate) encoder: Encoder,
    pub(crate) bufs: Vec<Activations>,
    pub(crate) matrices: Vec<Matrix>,
    pub(crate) vectors: Vec<Mem>,
    pub(crate) ropes: Vec<RopeTable>,
    /// By `Sequence`; `None` where one was dropped.
    pub(crate) sequences: Vec<Option<Vec<CacheState>>>,
    pub(crate) pools: Pools,
    /// States that are kept on the way.
    pub(crate) keep: Vec<Keep>,
    pub(crate) selections: Vec<Mask>,
    pub(crate) slots: Slots,
    pub(crate) rounded: RoundedInputs,
    pub(crate) scratch: Scratch,
    pub(crate) last_sum: Option<LastSum>,
    /// Histories that a step recorded ahead exchanges.
    pub(crate) turned: Vec<(Sequence, Cache)>,
    /// Whether kernels stand for several where they can.
    pub(crate) fuses: bool,
    /// Bytes of gates and ups that are computed together, where the device
    /// chooses experts for many rows.
    pub(crate) part_bytes: usize,
    /// Of matrix-vector products, where it was fixed.
    pub(crate) layout: Option<Layout>,
    /// The form of all layouts, where it was fixed.
    pub(crate) form: Option<Form>,
    /// By what products with many rows are computed.
    pub(crate) tiles: Tiles,
    /// How units for matrices share them out, where it was fixed.
    pub(crate) halves: Option<Halves>,
    /// Queries of all heads from which on those that attend to the same keys read
    /// these once for all of them.
    pub(crate) least_shared_queries: usize,
    slabs: Slabs,
}

impl Wgpu {
    /// A backend on an opened device, which keeps at most `slot_bytes` of
    /// routed experts there, or as many as it has memory for. With 0 bytes one that
    /// shares the host's memory reads them there.
    pub fn new(context: Arc<Context>, slot_bytes: Option<u64>) -> Wgpu {
        let tiles = match context.matrix_units() {
            true => Tiles::MatrixUnits,
            false => Tiles::Singles,
        };
        Wgpu::with_tiles(context, slot_bytes, tiles)
    }

    pub(crate) fn with_tiles(context: Arc<Context>, slot_bytes: Option<u64>, tiles: Tiles) -> Wgpu {
        let mut encoder = Encoder::new(Arc::clone(&context));
        if slot_bytes != Some(0) && encoder.reach() == Reach::InPlace {
            encoder.set_reach(Reach::Fetched);
        }
        Wgpu {
            tiles,
            halves: None,
            least_shared_queries: ops::MANY_QUERIES,
            last_sum: None,
            turned: Vec::new(),
            fuses: context.has_many_bindings(),
            encoder,
            bufs: Vec::new(),
            matrices: Vec::new(),
            vectors: Vec::new(),
            ropes: Vec::new(),
            sequences: Vec::new(),
            keep: Vec::new(),
            pools: Pools::default(),
            selections: Vec::new(),
            slots: Slots::new(slot_bytes.unwrap_or(u64::MAX)),
            rounded: RoundedInputs::default(),
            scratch: Scratch::default(),
            part_bytes: PART_BYTES,
            layout: None,
            form: None,
            slabs: Slabs::default(),
        }
    }

    /// Lays matrix-vector products out like this, as far as each allows,
    /// whatever suits them; with `None` as suits them.
    pub fn fix_layout(&mut self, layout: Option<Layout>) {
        self.layout = layout;
    }

    /// Computes matrix-vector products in this form, as far as it is exact; with
    /// `None` in the one that suits them.
    pub fn fix_form(&mut self, form: Option<Form>) {
        self.form = form;
    }

    /// Computes products with many rows by these, where the device can.
    pub fn fix_tiles(&mut self, tiles: Tiles) {
        let context = self.encoder.context();
        let can = match tiles {
            Tiles::Singles => true,
            Tiles::Emulated => context.has_halves,
            Tiles::MatrixUnits => context.has_matrix_units,
        };
        self.tiles = if can { tiles } else { Tiles::Singles };
    }

    pub(crate) fn buf(&self, buf: Buf) -> &Activations {
        &self.bufs[buf.0 as usize]
    }

    /// The buffer, about to be written.
    pub(crate) fn written(&mut self, buf: Buf) -> Activations {
        let it = &mut self.bufs[buf.0 as usize];
        it.version += 1;
        it.clone()
    }

    pub(crate) fn vector(&self, vector: Vector) -> &Mem {
        &self.vectors[vector.0 as usize]
    }

    pub(crate) fn matrix(&self, weight: Weight) -> &Matrix {
        &self.matrices[weight.0 as usize]
    }

    pub(crate) fn cache(&mut self, sequence: Sequence, cache: Cache) -> &mut CacheState {
        let caches = self.sequences[sequence.0 as usize].as_mut();
        &mut caches.expect("the sequence exists")[cache.0 as usize]
    }

    /// Where a recurrent cache lies.
    pub(crate) fn state(&self, sequence: Sequence, cache: Cache) -> State {
        let caches = self.sequences[sequence.0 as usize].as_ref();
        match &caches.expect("the sequence exists")[cache.0 as usize] {
            CacheState::Recurrent(room) => self.pools.rooms.state(room),
            CacheState::Kv(_) => panic!("keys and values are no state"),
        }
    }

    /// Has room for the states of spans; false where there is no memory.
    pub(crate) fn take_rooms(&mut self, spans: &[Span], caches: &[Cache]) -> bool {
        let Wgpu { encoder, pools, sequences, .. } = self;
        for span in spans.iter().filter(|it| !it.rows.is_empty()) {
            let all = sequences[span.sequence.0 as usize].as_mut().expect("the sequence exists");
            for cache in caches {
                let CacheState::Recurrent(room) = &mut all[cache.0 as usize] else {
                    panic!("keys and values are no state")
                };
                if !pools.rooms.take(encoder, room) {
                    return false;
                }
            }
        }
        true
    }

    fn caches(&mut self, sequence: Sequence) -> Vec<CacheState> {
        self.sequences[sequence.0 as usize].take().unwrap_or_default()
    }
}

fn part(buf: &Option<HostBuf>, len: usize) -> &[u8] {
    buf.as_ref().map_or(&[][..], |it| &it[..len])
}

impl Backend for Wgpu {
    fn alloc(&mut self, rows: usize, width: usize) -> Buf {
        assert!(width > 0, "a buffer has columns");
        let bytes = 4 * (rows * width) as u64;
        let mem = self.encoder.lasting_storage(bytes, "activations");
        self.bufs.push(Activations { mem, width, version: 0, wanted: None });
        Buf(u32::try_from(self.bufs.len() - 1).expect("few buffers"))
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
        Weight(u32::try_from(self.matrices.len() - 1).expect("few matrices"))
    }

    fn load_vector(&mut self, values: &[f32]) -> Vector {
        let mem = self.encoder.lasting_storage(4 * values.len() as u64, "vector");
        self.encoder.write(&mem, 0, bytemuck::cast_slice(values));
        self.vectors.push(mem);
        Vector(u32::try_from(self.vectors.len() - 1).expect("few vectors"))
    }

    fn load_rope(&mut self, spec: RopeSpec) -> Rope {
        self.ropes.push(RopeTable::new(spec));
        Rope(u32::try_from(self.ropes.len() - 1).expect("few tables"))
    }

    fn new_selection(&mut self) -> Selection {
        self.selections.push(Mask::default());
        Selection(u32::try_from(self.selections.len() - 1).expect("few selections"))
    }

    fn write(&mut self, buf: Buf, values: &[f32]) {
        let mem = self.written(buf).mem;
        self.encoder.write(&mem, 0, bytemuck::cast_slice(values));
    }

    fn read(&mut self, buf: Buf, rows: usize) -> Result<Vec<f32>, DeviceError> {
        let Activations { mem, width, .. } = self.buf(buf).clone();
        let bytes = self.encoder.read(&[(&mem, 0, 4 * (rows * width) as u64)])?;
        Ok(ops::floats(&bytes))
    }

    fn new_sequence(&mut self, specs: &[CacheSpec]) -> Sequence {
        let numbered = specs.iter().copied().enumerate();
        let caches = numbered.map(|it| CacheState::new(&mut self.pools, it)).collect();
        let free = self.sequences.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            self.sequences.push(None);
            self.sequences.len() - 1
        });
        self.sequences[at] = Some(caches);
        Sequence(u32::try_from(at).expect("few sequences"))
    }

    fn clear_sequence(&mut self, sequence: Sequence) {
        ahead::forget(self);
        let mut caches = self.caches(sequence);
        caches.iter_mut().for_each(|it| it.clear(&mut self.encoder, &mut self.pools));
        self.sequences[sequence.0 as usize] = Some(caches);
    }

    fn drop_sequence(&mut self, sequence: Sequence) {
        ahead::forget(self);
        let caches = self.caches(sequence).into_iter();
        caches.for_each(|it| it.release(&mut self.encoder, &mut self.pools));
    }

    fn truncate_sequence(&mut self, sequence: Sequence, len: usize) {
        let mut caches = self.caches(sequence);
        caches.iter_mut().for_each(|it| it.truncate(&mut self.encoder, &mut self.pools, len));
        self.sequences[sequence.0 as usize] = Some(caches);
    }

    fn reserve_states(&mut self, sequence: Sequence) -> bool {
        // Slabs may grow.
        ahead::forget(self);
        let Wgpu { encoder, pools, sequences, .. } = self;
        let caches = sequences[sequence.0 as usize].iter_mut().flatten();
        caches.into_iter().all(|it| it.reserve(encoder, pools))
    }

    fn keep_states(&mut self, keep: &[Keep]) {
        if !keep.is_empty() {
            ahead::forget(self);
        }
        self.keep = keep.to_vec();
    }

    fn swap_states(&mut self, one: Sequence, other: Sequence) {
        ahead::forget(self);
        let at = [one, other].map(|it| it.0 as usize);
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
        ahead::forget(self);
        let caches = self.sequences[sequence.0 as usize].as_mut();
        let state = &mut caches.expect("the sequence exists")[cache.0 as usize];
        state.load(&mut self.encoder, &mut self.pools, positions, bytes)
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

    fn head_product(&mut self, rows: usize, op: HeadProduct) {
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
        ops::delta_rule(self, op, spans);
    }

    fn delta_net(&mut self, op: DeltaNet, spans: &[Span]) {
        ops::delta_net(self, op, spans);
    }

    fn add_bias(&mut self, rows: usize, acc: Cols, bias: Vector) {
        ops::add_bias(self, rows, acc, bias);
    }

    fn add(&mut self, rows: usize, acc: Cols, x: Cols) {
        ops::add(self, rows, acc, x);
    }

    fn swiglu(&mut self, rows: usize, out: Cols, gate: Cols, up: Cols) {
        ops::swiglu(self, rows, out, gate, up);
    }

    fn experts(&mut self, op: Experts<'_>) {
        ops::experts(self, op);
    }

    fn combine(&mut self, rows: usize, op: Combine<'_>) {
        ops::combine(self, rows, op);
    }

    fn holds_expert(&self, layer: LayerIdx, expert: ExpertId) -> bool {
        self.slots.holds(ExpertKey { layer, expert })
    }

    fn held_experts(&mut self, op: HeldExperts<'_>) {
        ops::held_experts(self, op);
    }

    fn take_moves(&mut self) -> Vec<(ExpertKey, bool)> {
        self.slots.take_moves()
    }

    fn counters(&self) -> Option<Arc<DeviceCounters>> {
        Some(Arc::clone(self.encoder.counters()))
    }

    fn time_kernels(&mut self, is_on: bool) -> Result<Vec<KernelTime>, DeviceError> {
        self.encoder.time_kernels(is_on)
    }

    fn flush(&mut self) {
        self.encoder.flush();
    }

    fn let_go(&mut self, at_most: usize) {
        self.encoder.let_go(at_most);
    }

    fn begin_experts(
        &mut self,
        layer: LayerIdx,
        held: &[(ExpertId, Vec<ExpertRow>)],
        experts: &mut dyn Iterator<Item = &Arc<Expert>>,
    ) {
        let held = held.iter().map(|it| ExpertKey { layer, expert: it.0 });
        ops::begin_experts(self, held, experts);
    }

    fn has_room_for_experts(&mut self, all: AllExperts) -> bool {
        self.slots.plan(&self.encoder, all)
    }

    fn note_shared_expert(&mut self, layer: LayerIdx, projections: [Weight; 3]) {
        if self.fuses {
            let matrices = projections.map(|it| self.matrix(it).clone());
            self.slots.note_shared(layer, matrices);
        }
    }

    fn keep_expert(&mut self, expert: &Arc<Expert>, n_experts: usize) -> bool {
        self.slots.keep(&mut self.encoder, expert, n_experts)
    }

    fn drop_experts(&mut self) {
        self.slots.drop_kept(&mut self.encoder);
    }

    fn holds_layer(&self, layer: LayerIdx, rows: usize) -> bool {
        self.slots.can_choose(layer, rows)
    }

    fn routed_experts(&mut self, rows: usize, op: RoutedExperts) {
        ops::routed_experts(self, rows, op);
    }

    fn route(&mut self, rows: usize, op: Route) -> Result<Routing, DeviceError> {
        ops::route(self, rows, op)
    }

    fn logits(
        &mut self,
        rows: &[usize],
        x: Cols,
        head: Weight,
        beside: Beside<'_>,
    ) -> Result<Vec<f32>, DeviceError> {
        ops::logits(self, rows, (x, head), beside)
    }

    fn leaders(
        &mut self,
        rows: &[usize],
        n: usize,
        x: Cols,
        head: Weight,
        beside: Beside<'_>,
    ) -> Result<Option<Vec<Vec<Leader>>>, DeviceError> {
        ops::leaders(self, rows, n, (x, head), beside)
    }

    fn run_ahead(&mut self, tokens: &[TokenId]) -> bool {
        let tokens: Vec<u32> = tokens.iter().map(|it| it.0).collect();
        self.encoder.run_ahead(&tokens)
    }

    fn drop_ahead(&mut self) {
        ahead::forget(self);
    }
}
