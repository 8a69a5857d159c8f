//! Each op of the backend, handed to the file that computes it.

use std::ops::Range;
use std::sync::PoisonError;

use moeflux_core::{ExpertId, HostBuf, HostSlab, TokenId};

use super::chosen::Chosen;
use super::floats::Floats;
use super::memory::{Activations, CacheState, Matrix};
use super::parallel::for_each_chunk;
use super::pool::SharedMut;
use super::rope::RopeTable;
use super::state::{Cpu, n_rows};
use super::{attention, elementwise, entries, mixers, norm, products, route, select, streams};
use crate::{
    Attention, Backend, BlendStreams, Buf, Cache, CacheSpec, CausalConv, Cols, Combine, DeltaNet,
    DeltaRule, DeviceError, Experts, GatedActivation, GatedAttention, GatedRmsNorm, HeadProduct,
    Heads, HostMatrix, JoinStreams, KeysValues, LayerNorm, LogitsExtras, MixStreams, Ops,
    PerExpert, PlainActivation, PoolEntries, Projection, RmsNorm, Rope, RopeSpec, Route, Routing,
    Scoring, SelectPositions, Selection, Sequence, Sequences, SimilarityGate, Span, StateSnapshot,
    StateSpace, StreamShares, Vector, WeighStreams, Weight,
};

impl Backend for Cpu {}

impl Ops for Cpu {
    fn alloc(&mut self, rows: usize, width: usize) -> Buf {
        assert!(width > 0, "a buffer has columns");
        self.bufs.push(Activations { data: Floats::zeroed(rows * width), width, version: 0 });
        Buf(u32::try_from(self.bufs.len() - 1).expect("few buffers"))
    }

    fn host_alloc(&self, len: usize) -> HostBuf {
        if !SHARED_BYTES.contains(&len) {
            return HostBuf::zeroed(len);
        }
        let mut slab = self.slab.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(buf) = slab.carve(len) {
            return buf;
        }
        *slab = HostSlab::new(SLAB_BYTES);
        slab.carve(len).unwrap_or_else(|| HostBuf::zeroed(len))
    }

    fn load_matrix(&mut self, matrix: HostMatrix) -> Weight {
        self.matrices.push(Matrix::new(matrix));
        Weight(u32::try_from(self.matrices.len() - 1).expect("few matrices"))
    }

    fn load_vector(&mut self, values: &[f32]) -> Vector {
        self.vectors.push(values.to_vec());
        Vector(u32::try_from(self.vectors.len() - 1).expect("few vectors"))
    }

    fn load_rope(&mut self, spec: RopeSpec) -> Rope {
        self.ropes.push(RopeTable::new(spec));
        Rope(u32::try_from(self.ropes.len() - 1).expect("few tables"))
    }

    fn write(&mut self, buf: Buf, values: &[f32]) {
        self.buf_mut(buf).data[..values.len()].copy_from_slice(values);
    }

    fn write_rows(&mut self, buf: Buf, first: usize, values: &[f32]) {
        let activations = self.buf_mut(buf);
        let start = first * activations.width;
        activations.data[start..start + values.len()].copy_from_slice(values);
    }

    fn read(&mut self, buf: Buf, rows: usize) -> Result<Vec<f32>, DeviceError> {
        let buf = self.buf(buf);
        Ok(buf.data[..rows * buf.width].to_vec())
    }

    fn new_selection(&mut self) -> Selection {
        self.selections.push(Chosen::default());
        Selection(u32::try_from(self.selections.len() - 1).expect("few selections"))
    }

    fn select_positions(&mut self, op: SelectPositions, spans: &[Span]) {
        select::select_positions(self, op, spans);
    }

    fn pool_entries(&mut self, op: PoolEntries, spans: &[Span]) {
        entries::pool_entries(self, op, spans);
    }

    fn layer_norm(&mut self, rows: usize, op: LayerNorm) {
        self.copy_heads(rows, op.out, op.x);
        let isa = self.isa;
        self.for_each_head(rows, op.out, &|cpu, _, _, values| {
            norm::layer_norm(isa, values, cpu.vector(op.weight), cpu.vector(op.bias), op.eps);
        });
    }

    fn copy(&mut self, rows: usize, out: Heads, x: Heads) {
        self.copy_heads(rows, out, x);
    }

    fn join_rows(&mut self, rows: usize, out: Cols, x: Cols) {
        assert_eq!(out.len % x.len, 0, "whole rows stand side by side");
        let n = out.len / x.len;
        self.for_each_row(rows, out, out.len, &|cpu, row, values| {
            let x_rows = values.chunks_exact_mut(x.len).zip(n * row..);
            for (values, x_row) in x_rows {
                values.copy_from_slice(cpu.buf(x.buf).cols(x_row, x));
            }
        });
    }

    fn head_product(&mut self, rows: usize, op: HeadProduct) {
        products::head_product(self, rows, op);
    }

    fn add_bias(&mut self, rows: usize, acc: Cols, bias: Vector) {
        let isa = self.isa;
        self.for_each_row(rows, acc, acc.len, &|cpu, _, values| {
            elementwise::add(isa, values, cpu.vector(bias));
        });
    }

    fn embed(&mut self, out: Cols, table: Weight, tokens: &[TokenId]) {
        let isa = self.isa;
        self.for_each_row(tokens.len(), out, out.len * 4, &|cpu, row, values| {
            let table = cpu.matrices[table.0 as usize].view();
            elementwise::decode_row(isa, values, table, tokens[row].0 as usize);
        });
    }

    fn rms_norm(&mut self, rows: usize, op: RmsNorm) {
        let isa = self.isa;
        if op.out == op.x {
            self.for_each_head(rows, op.out, &|cpu, _, head, values| {
                norm::rms_norm_in_place(isa, values, cpu.norm_weight(&op, head), op.eps);
            });
            return;
        }
        self.for_each_head(rows, op.out, &|cpu, row, head, values| {
            let x = cpu.buf(op.x.buf).head(row, op.x, head);
            norm::rms_norm(isa, values, x, cpu.norm_weight(&op, head), op.eps);
        });
    }

    fn gated_rms_norm(&mut self, rows: usize, op: GatedRmsNorm) {
        self.copy_heads(rows, op.norm.out, op.norm.x);
        let isa = self.isa;
        self.for_each_head(rows, op.norm.out, &|cpu, row, head, values| {
            let gate = cpu.buf(op.gate.buf).head(row, op.gate, head);
            let weight = cpu.norm_weight(&op.norm, head);
            if op.gates_input {
                norm::gate(isa, values, gate, op.function);
                norm::rms_norm_in_place(isa, values, weight, op.norm.eps);
            } else {
                norm::gated_rms_norm(isa, values, weight, gate, op.function, op.norm.eps);
            }
        });
    }

    fn project(&mut self, rows: usize, x: Cols, outputs: &[Projection]) {
        products::project(self, rows, x, outputs);
    }

    fn rope(&mut self, x: Heads, rope: Rope, spans: &[Span]) {
        self.ropes[rope.0 as usize].set(spans);
        let isa = self.isa;
        self.for_each_head(n_rows(spans), x, &|cpu, row, _, values| {
            cpu.ropes[rope.0 as usize].rotate(isa, row, values);
        });
    }

    fn append(&mut self, cache: Cache, append: KeysValues, spans: &[Span]) {
        attention::append(self, cache, append, spans);
    }

    fn attention(&mut self, op: Attention, spans: &[Span]) {
        attention::attention(self, op, spans);
    }

    fn gated_attention(&mut self, op: GatedAttention, spans: &[Span]) {
        op.run_parts(self, spans);
    }

    fn sigmoid_gate(&mut self, rows: usize, x: Heads, gate: Heads) {
        let isa = self.isa;
        self.for_each_head(rows, x, &|cpu, row, head, values| {
            elementwise::sigmoid_gate(isa, values, cpu.buf(gate.buf).head(row, gate, head));
        });
    }

    fn causal_conv(&mut self, op: CausalConv, spans: &[Span]) {
        mixers::causal_conv(self, op, spans);
    }

    fn delta_rule(&mut self, op: DeltaRule, spans: &[Span]) {
        mixers::delta_rule(self, op, spans);
    }

    fn delta_net(&mut self, op: DeltaNet, spans: &[Span]) {
        op.run_parts(self, spans);
    }

    fn state_space(&mut self, op: StateSpace, spans: &[Span]) {
        mixers::state_space(self, op, spans);
    }

    fn add(&mut self, rows: usize, acc: Cols, x: Cols) {
        let isa = self.isa;
        self.for_each_row(rows, acc, acc.len, &|cpu, row, values| {
            elementwise::add(isa, values, cpu.buf(x.buf).cols(row, x));
        });
    }

    fn scale(&mut self, rows: usize, x: Cols, factor: f32) {
        let isa = self.isa;
        self.for_each_row(rows, x, x.len, &|_, _, values| {
            elementwise::scale(isa, values, factor);
        });
    }

    fn scaled_silu(&mut self, rows: usize, x: Cols, factor: f32) {
        let isa = self.isa;
        self.for_each_row(rows, x, x.len * 4, &|_, _, values| {
            elementwise::scaled_silu(isa, values, factor);
        });
    }

    fn mix_streams(&mut self, rows: usize, op: MixStreams) {
        streams::mix_streams(self, rows, op);
    }

    fn stream_shares(&mut self, rows: usize, op: StreamShares) {
        streams::stream_shares(self, rows, op);
    }

    fn weigh_streams(&mut self, rows: usize, op: WeighStreams) {
        streams::weigh_streams(self, rows, op);
    }

    fn blend_streams(&mut self, rows: usize, op: BlendStreams) {
        streams::blend_streams(self, rows, op);
    }

    fn join_streams(&mut self, rows: usize, op: JoinStreams) {
        streams::join_streams(self, rows, op);
    }

    fn similarity_gate(&mut self, rows: usize, op: SimilarityGate) {
        streams::similarity_gate(self, rows, op);
    }

    fn activate(
        &mut self,
        rows: usize,
        activation: GatedActivation,
        out: Cols,
        gate: Cols,
        up: Cols,
    ) {
        let isa = self.isa;
        self.for_each_row(rows, out, out.len * 4, &|cpu, row, values| {
            let up = cpu.buf(up.buf).cols(row, up);
            if out != gate {
                values.copy_from_slice(cpu.buf(gate.buf).cols(row, gate));
            }
            elementwise::activate_gate(isa, activation, values, up);
        });
    }

    fn activate_plain(&mut self, rows: usize, activation: PlainActivation, x: Cols) {
        let isa = self.isa;
        self.for_each_row(rows, x, x.len, &|_, _, values| {
            elementwise::activate_plain(isa, activation, values);
        });
    }

    fn experts(&mut self, op: Experts<'_>) {
        products::experts(self, op);
    }

    fn combine(&mut self, rows: usize, op: Combine<'_>) {
        let isa = self.isa;
        let cost = op.acc.len * (op.top_k + 2);
        self.for_each_row(rows, op.acc, cost, &|cpu, row, values| {
            let slots = cpu.buf(op.slots);
            let shared = op.shared.map(|shared| {
                let gate = shared.gate.map(|gate| cpu.buf(gate.buf).cols(row, gate)[0]);
                let mut factor = [gate.unwrap_or_default()];
                elementwise::sigmoids(isa, &mut factor);
                let factor = gate.map_or(1.0, |_| factor[0]);
                (cpu.buf(shared.out.buf).cols(row, shared.out), factor)
            });
            for (i, values) in values.chunks_mut(COMBINED).enumerate() {
                let (first, n) = (i * COMBINED, values.len());
                let mut sums = [0.0; COMBINED];
                let sum = &mut sums[..n];
                for slot in row * op.top_k..(row + 1) * op.top_k {
                    let weight = op.weights[slot];
                    if weight != 0.0 {
                        let x = &slots.data[slot * slots.width + first..][..n];
                        elementwise::add_scaled(isa, sum, x, weight);
                    }
                }
                if let Some((x, factor)) = shared {
                    elementwise::add_scaled(isa, sum, &x[first..first + n], factor);
                }
                elementwise::add(isa, values, sum);
            }
        });
    }

    fn route(&mut self, rows: usize, op: Route) -> Result<Routing, DeviceError> {
        let mut out = Routing::default();
        self.route_into(rows, op, &mut out)?;
        Ok(out)
    }

    fn route_into(&mut self, rows: usize, op: Route, out: &mut Routing) -> Result<(), DeviceError> {
        let logits = self.buf(op.logits.buf);
        let per_expert = match op.scoring {
            Scoring::Sigmoid { bias, .. } | Scoring::SqrtSoftplus { bias, .. } => bias,
            Scoring::Softmax { per_expert, .. } => per_expert.map(PerExpert::vector),
            Scoring::SoftmaxOfChosen => None,
        };
        let per_expert = per_expert.map(|vector| self.vector(vector));
        let (isa, spare) = (self.isa, &self.route_scratch);
        let Route { top_k, scoring, .. } = op;
        let router = route::Router { isa, top_k, scoring, per_expert, spare };
        let Routing { experts, weights } = out;
        experts.clear();
        experts.resize(rows * op.top_k, ExpertId(0));
        weights.clear();
        weights.resize(rows * op.top_k, 0.0);
        let shared = SharedMut::new(experts);
        // A choice costs as much as some passes over the logits.
        let cost = 16 * op.logits.len;
        for_each_chunk(&self.pool, weights, op.top_k, cost, &|row, weights| {
            // SAFETY: a row belongs to one task, and its part to the row.
            let experts = unsafe { shared.slice(row * op.top_k..(row + 1) * op.top_k) };
            router.choose(logits.cols(row, op.logits), experts, weights);
        });
        Ok(())
    }

    fn logits(
        &mut self,
        rows: &[usize],
        x: Cols,
        head: Weight,
        extras: LogitsExtras<'_>,
    ) -> Result<Vec<f32>, DeviceError> {
        if let Some(hidden) = extras.hidden_rows {
            *hidden.into = self.read(x.buf, hidden.n)?;
        }
        Ok(products::logits(self, rows, x, head))
    }
}

impl Sequences for Cpu {
    fn new_sequence(&mut self, specs: &[CacheSpec]) -> Sequence {
        let caches = specs.iter().map(|spec| CacheState::new(*spec)).collect();
        let free = self.sequences.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            self.sequences.push(None);
            self.sequences.len() - 1
        });
        self.sequences[at] = Some(caches);
        Sequence(u32::try_from(at).expect("few sequences"))
    }

    fn clear_sequence(&mut self, sequence: Sequence) {
        for cache in self.sequences[sequence.0 as usize].iter_mut().flatten() {
            cache.clear();
        }
    }

    fn drop_sequence(&mut self, sequence: Sequence) {
        self.sequences[sequence.0 as usize] = None;
    }

    fn truncate_sequence(&mut self, sequence: Sequence, len: usize) {
        for cache in self.sequences[sequence.0 as usize].iter_mut().flatten() {
            cache.truncate(len);
        }
    }

    fn forget_passed(&mut self, sequence: Sequence, ends: &[usize]) {
        for cache in self.sequences[sequence.0 as usize].iter_mut().flatten() {
            cache.forget_passed(ends);
        }
    }

    fn snapshot_states(&mut self, snapshots: &[StateSnapshot]) {
        self.snapshots = snapshots.to_vec();
    }

    fn reserve_states(&mut self, _sequence: Sequence) -> bool {
        true
    }

    fn swap_states(&mut self, one: Sequence, other: Sequence) {
        let (one, other) = self.both(one, other);
        one.iter_mut().zip(other).for_each(|(one, other)| one.swap_state(other));
    }

    fn save_cache(
        &mut self,
        sequence: Sequence,
        cache: Cache,
        positions: Range<usize>,
    ) -> Result<Vec<u8>, DeviceError> {
        Ok(self.cache_slot(sequence, cache).save(positions))
    }

    fn load_cache(
        &mut self,
        sequence: Sequence,
        cache: Cache,
        positions: Range<usize>,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        self.cache_slot(sequence, cache).load(positions, bytes);
        Ok(())
    }
}

/// Bytes of a piece of memory that smaller weights share, so that they are in
/// huge pages: a page that is not at hand costs more than what is read of it.
const SLAB_BYTES: usize = 16 << 20;

/// Sizes in bytes of the weights that share such a piece.
const SHARED_BYTES: Range<usize> = 64 << 10..2 << 20;

/// Columns of experts' outputs that are added up together.
const COMBINED: usize = 256;
