//! What a device must be able to do, and the CPU that always can.
//!
//! A backend is driven one op at a time through [`Backend`]. It knows no file,
//! no model and no session: it sees handles, and experts as `Arc<Expert>`.

mod ahead;
pub mod conformance;
mod counters;
pub mod cpu;
mod held;
mod keep;
mod kv;
mod mixers;
mod ops;
mod stage;
pub mod timed;
pub mod trace;

use std::ops::Range;
use std::sync::Arc;

use moeflux_core::{Expert, ExpertId, ExpertKey, HostBuf, LayerIdx, TokenId};

pub use ahead::{Ahead, Beside};
pub use counters::{DeviceCounters, DeviceStats, KernelTime};
pub use held::{AllExperts, HeldExperts, RoutedExperts};
pub use keep::{Cut, Keep};
pub use mixers::{DeltaNet, GatedAttention, SharedExpert};
pub use ops::{
    Activation, Attention, Buf, Cache, CacheSpec, CausalConv, Cols, Combine, DeltaRule,
    ExpertBiases, ExpertCall, ExpertGroups, ExpertRow, Experts, GatedRmsNorm, HeadProduct, Heads,
    HostMatrix, Inputs, KvType, LayerNorm, Leader, Projection, RmsNorm, Rope, RopePairs, RopeSpec,
    Route, Routing, Scoring, SelectPositions, Selection, Sequence, Shared, Span, Vector, Weight,
};
pub use stage::Stage;

/// The device can fail only where it talks to the host.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// No memory is left for what was asked.
    #[error("the device is out of memory: {} were asked for", moeflux_core::show_bytes(*bytes))]
    OutOfMemory {
        /// How much was asked for.
        bytes: u64,
    },
    /// The device is gone.
    #[error("the device was lost: {reason}")]
    Lost {
        /// What it said.
        reason: String,
    },
}

/// A device, driven one op at a time.
///
/// Activations are batch-first: every op works on the first `rows` rows of its
/// buffers. Ops are recorded in order and cannot fail; what went wrong is
/// reported by the calls that read back, [`route`](Backend::route) and
/// [`logits`](Backend::logits). Shapes that do not fit are the caller's
/// mistake and panic.
pub trait Backend: Send {
    /// Says what the ops that follow are part of, for whoever measures; it
    /// changes nothing.
    fn begin_stage(&mut self, _stage: Stage, _layer: Option<u16>) {}

    /// Memory for `rows` rows of `width` floats.
    fn alloc(&mut self, rows: usize, width: usize) -> Buf;
    /// Memory that records are read into.
    fn host_alloc(&self, len: usize) -> HostBuf {
        HostBuf::zeroed(len)
    }
    /// Takes a resident matrix.
    fn load_matrix(&mut self, matrix: HostMatrix) -> Weight;
    /// Takes resident constants.
    fn load_vector(&mut self, values: &[f32]) -> Vector;
    /// Takes rotary frequencies.
    fn load_rope(&mut self, spec: RopeSpec) -> Rope;
    /// Room for the choice of positions of a batch.
    fn new_selection(&mut self) -> Selection;

    /// Overwrites the first rows of a buffer.
    fn write(&mut self, buf: Buf, values: &[f32]);
    /// Reads the first `rows` rows of a buffer back.
    ///
    /// # Errors
    /// Whatever went wrong since the last read-back.
    fn read(&mut self, buf: Buf, rows: usize) -> Result<Vec<f32>, DeviceError>;

    /// Begins a sequence whose caches are empty; `Cache(i)` is `specs[i]`.
    fn new_sequence(&mut self, specs: &[CacheSpec]) -> Sequence;
    /// Empties the caches of a sequence.
    fn clear_sequence(&mut self, sequence: Sequence);
    /// Ends a sequence; its handle may be given out again.
    fn drop_sequence(&mut self, sequence: Sequence);
    /// Cuts the caches of keys and values to the first `len` positions, and
    /// leaves recurrent states as they are.
    fn truncate_sequence(&mut self, sequence: Sequence, len: usize);
    /// Has memory for the recurrent states of a sequence; false where there is none, and
    /// nothing has failed.
    fn reserve_states(&mut self, _sequence: Sequence) -> bool {
        true
    }
    /// From now on ops that replace recurrent states also put some that they pass into other
    /// sequences, which are [reserved](Backend::reserve_states). An empty list ends that.
    fn keep_states(&mut self, keep: &[Keep]);
    /// Exchanges the recurrent states of two sequences whose caches are alike, and
    /// leaves keys and values as they are.
    fn swap_states(&mut self, one: Sequence, other: Sequence);
    /// Reads some positions of a cache back, or a recurrent state, whatever
    /// the positions, as [`CacheSpec::saved_bytes`] describes.
    ///
    /// # Errors
    /// Whatever went wrong since the last read-back.
    fn save_cache(
        &mut self,
        sequence: Sequence,
        cache: Cache,
        positions: Range<usize>,
    ) -> Result<Vec<u8>, DeviceError>;
    /// Overwrites what [`save_cache`](Backend::save_cache) reads.
    ///
    /// # Errors
    /// Whatever went wrong since the last read-back. Where there is no memory for
    /// the bytes, the cache holds nothing of them.
    fn load_cache(
        &mut self,
        sequence: Sequence,
        cache: Cache,
        positions: Range<usize>,
        bytes: &[u8],
    ) -> Result<(), DeviceError>;

    /// `out[row] = table[tokens[row]]`.
    fn embed(&mut self, out: Cols, table: Weight, tokens: &[TokenId]);
    /// Normalises every head of every row.
    fn rms_norm(&mut self, rows: usize, op: RmsNorm);
    /// Normalises and gates every head of every row.
    fn gated_rms_norm(&mut self, rows: usize, op: GatedRmsNorm);
    /// Normalises every head of every row to mean 0 and variance 1.
    fn layer_norm(&mut self, rows: usize, op: LayerNorm);
    /// `out = x`, head by head.
    fn copy(&mut self, rows: usize, out: Heads, x: Heads);
    /// Multiplies every head with a matrix of its own.
    fn head_product(&mut self, rows: usize, op: HeadProduct);
    /// Several products with the same input.
    fn project(&mut self, rows: usize, x: Cols, outputs: &[Projection]);
    /// Rotates every head in place, by its row's position.
    fn rope(&mut self, x: Heads, rope: Rope, spans: &[Span]);
    /// Extends the cache of index keys and chooses positions.
    fn select_positions(&mut self, op: SelectPositions, spans: &[Span]);
    /// Extends the cache and attends.
    fn attention(&mut self, op: Attention, spans: &[Span]);
    /// [`rms_norm`](Backend::rms_norm) of queries and keys,
    /// [`rope`](Backend::rope) of both, [`attention`](Backend::attention) and
    /// [`sigmoid_gate`](Backend::sigmoid_gate); what queries and keys are
    /// afterwards is open.
    fn gated_attention(&mut self, op: GatedAttention, spans: &[Span]) {
        op.run_parts(self, spans);
    }
    /// `x = x * sigmoid(gate)`.
    fn sigmoid_gate(&mut self, rows: usize, x: Heads, gate: Heads);
    /// Convolves, then `silu`.
    fn causal_conv(&mut self, op: CausalConv, spans: &[Span]);
    /// Runs the recurrence row by row.
    fn delta_rule(&mut self, op: DeltaRule, spans: &[Span]);
    /// [`causal_conv`](Backend::causal_conv), [`delta_rule`](Backend::delta_rule)
    /// and [`gated_rms_norm`](Backend::gated_rms_norm); what convolution and delta
    /// rule leave in their outputs, unless the norm writes there, is open.
    fn delta_net(&mut self, op: DeltaNet, spans: &[Span]) {
        op.run_parts(self, spans);
    }
    /// `acc += bias`, in every row.
    fn add_bias(&mut self, rows: usize, acc: Cols, bias: Vector);
    /// `acc += x`.
    fn add(&mut self, rows: usize, acc: Cols, x: Cols);
    /// `out = silu(gate) * up`.
    fn swiglu(&mut self, rows: usize, out: Cols, gate: Cols, up: Cols);
    /// Runs experts that have arrived.
    fn experts(&mut self, op: Experts<'_>);
    /// Adds experts' outputs to the residual stream.
    fn combine(&mut self, rows: usize, op: Combine<'_>);

    /// Whether an expert lies in memory of the device's own, and stays there
    /// until the next call of [`experts`](Backend::experts) or
    /// [`keep_expert`](Backend::keep_expert).
    fn holds_expert(&self, _layer: LayerIdx, _expert: ExpertId) -> bool {
        false
    }
    /// As [`experts`](Backend::experts), with some that the device
    /// [holds](Backend::holds_expert).
    fn held_experts(&mut self, op: HeldExperts<'_>) {
        panic!("experts of layer {} are not held", op.layer.0);
    }
    /// Experts that came to memory of the device's own, or left it, since the
    /// last call, in that order; whether each was there afterwards.
    fn take_moves(&mut self) -> Vec<(ExpertKey, bool)> {
        Vec::new()
    }
    /// What counts the experts that are copied to the device and those that it
    /// has, where it has memory of its own.
    fn counters(&self) -> Option<Arc<DeviceCounters>> {
        None
    }
    /// Has a device note when each kernel ends, or not any more; gives the
    /// kernels noted until then, alike ones together. None where it has no clock.
    ///
    /// # Errors
    /// Whatever went wrong since the last read-back.
    fn time_kernels(&mut self, _is_on: bool) -> Result<Vec<KernelTime>, DeviceError> {
        Ok(Vec::new())
    }
    /// Hands what is recorded to the device, because the host is about to wait
    /// for something else.
    fn flush(&mut self) {}
    /// Returns when the backend holds at most so many experts that it was given:
    /// one whose device reads them where they lie holds them until then, or until
    /// the next read-back.
    fn let_go(&mut self, _at_most: usize) {}
    /// Begins to bring experts to the device that [`experts`](Backend::experts) is
    /// about to be given; they may be held until then. Those of the layer that are
    /// listed as [held](Backend::holds_expert) stay there.
    fn begin_experts(
        &mut self,
        _layer: LayerIdx,
        _held: &[(ExpertId, Vec<ExpertRow>)],
        _experts: &mut dyn Iterator<Item = &Arc<Expert>>,
    ) {
    }

    /// Whether experts can be [kept](Backend::keep_expert): all of them fit into the
    /// device for good, beside what it holds, or enough of them where it can fetch
    /// the others by itself. Devices that read experts where the store puts them
    /// have no use for that.
    fn has_room_for_experts(&mut self, _all: AllExperts) -> bool {
        false
    }
    /// Tells the gate, up and down projections of the expert that every row of a
    /// layer gets, before experts of the layer are kept: a device may keep a copy
    /// of it beside these.
    fn note_shared_expert(&mut self, _layer: LayerIdx, _projections: [Weight; 3]) {}
    /// Takes an expert of a layer of `n_experts` for good; false where there is
    /// no room, and then whoever asks should [drop](Backend::drop_experts) them
    /// all. It may be held until it is [let go](Backend::let_go) or, where experts
    /// [stay](AllExperts::stay), until all are dropped.
    fn keep_expert(&mut self, _expert: &Arc<Expert>, _n_experts: usize) -> bool {
        false
    }
    /// Gives back all experts that were to be kept.
    fn drop_experts(&mut self) {}
    /// Whether all experts of a layer are kept, and the device can choose those of so
    /// many rows, by [`routed_experts`](Backend::routed_experts).
    fn holds_layer(&self, _layer: LayerIdx, _rows: usize) -> bool {
        false
    }
    /// [`route`](Backend::route), [`experts`](Backend::experts) and
    /// [`combine`](Backend::combine) with the experts of a layer that the device
    /// [holds](Backend::holds_layer) and the [shared](SharedExpert) one, without
    /// reading anything back; what lies in the room for outputs afterwards is open.
    fn routed_experts(&mut self, _rows: usize, op: RoutedExperts) {
        panic!("layer {} is not held", op.layer.0);
    }

    /// Chooses experts and reads the choice back.
    ///
    /// # Errors
    /// Whatever went wrong since the last read-back.
    fn route(&mut self, rows: usize, op: Route) -> Result<Routing, DeviceError>;

    /// As [`Backend::route`], in memory that is already there.
    ///
    /// # Errors
    /// As [`Backend::route`].
    fn route_into(&mut self, rows: usize, op: Route, out: &mut Routing) -> Result<(), DeviceError> {
        *out = self.route(rows, op)?;
        Ok(())
    }
    /// Reads `head @ x[row]` back for each of `rows`: `rows.len() * vocab`
    /// floats, and what is wanted [beside](Beside) that.
    ///
    /// # Errors
    /// Whatever went wrong since the last read-back.
    fn logits(
        &mut self,
        rows: &[usize],
        x: Cols,
        head: Weight,
        beside: Beside<'_>,
    ) -> Result<Vec<f32>, DeviceError>;
    /// The `n` highest of `head @ x[row]` for each of `rows`, the highest first, of equal
    /// ones the first; fewer where others are minus infinity. `None` where logits say
    /// more: those of a row are damaged or all so low, or `n` is so large that choosing
    /// saves nothing, or the backend has them at hand anyway; what is wanted
    /// [beside](Beside) that may be missing then.
    ///
    /// # Errors
    /// As [`Backend::logits`].
    fn leaders(
        &mut self,
        _rows: &[usize],
        _n: usize,
        _x: Cols,
        _head: Weight,
        _beside: Beside<'_>,
    ) -> Result<Option<Vec<Vec<Leader>>>, DeviceError> {
        Ok(None)
    }
    /// Runs the step that was recorded [ahead](Ahead), with these tokens; false where
    /// none was. Until then nothing is recorded, read or written but what
    /// [drops](Backend::drop_ahead) it.
    fn run_ahead(&mut self, _tokens: &[TokenId]) -> bool {
        false
    }
    /// Forgets the step that was recorded ahead, if one was.
    fn drop_ahead(&mut self) {}
}
