//! The interface of a device. A prerecorded step takes a backend as an argument, so that the
//! traits that pass one on stand in one file.

use std::fmt;

use moeflux_core::{HostBuf, TokenId};

use crate::{
    ActivationPrecision, Attention, BlendStreams, Buf, Cache, CausalConv, Cols, Combine, DeltaNet,
    DeltaRule, DeviceError, ExpertResidency, Experts, GatedActivation, GatedAttention,
    GatedRmsNorm, HeadProduct, Heads, HostMatrix, JoinStreams, KeysValues, LayerNorm, MixStreams,
    PlainActivation, PoolEntries, Projection, Recording, RmsNorm, Rope, RopeSpec, Route, Routing,
    SelectPositions, Selection, Sequences, SimilarityGate, Span, Stage, StateSpace, StreamShares,
    TokenLogit, Vector, WeighStreams, Weight,
};

/// A device: ops, the caches of sequences and, where it has them, copies of experts and
/// recorded commands.
///
/// One thread at a time drives a backend; it may move between threads.
pub trait Backend: Ops + Sequences {
    /// Names the part of the model that the following ops belong to. Only profilers use it;
    /// it changes no result.
    fn begin_stage(&mut self, _stage: Stage, _layer: Option<u16>) {}

    /// The experts in the device's memory; `None` for a device that computes in the host's
    /// memory.
    fn residency(&self) -> Option<&dyn ExpertResidency> {
        None
    }

    /// The same object as [`residency`](Backend::residency), to change it or to run ops.
    fn residency_mut(&mut self) -> Option<&mut dyn ExpertResidency> {
        None
    }

    /// The recorded commands; `None` for a device that runs every op at once.
    fn recording(&mut self) -> Option<&mut dyn Recording> {
        None
    }
}

/// Memory, weights and the ops of a forward pass.
///
/// Activations are batch-first: every op works on the first `rows` rows of its buffers, and
/// where it takes [spans](Span) on the rows up to the end of the last one. Ops run in the
/// order of their calls and return nothing: the calls that read back report what failed.
/// Arguments whose shapes do not fit are the caller's mistake and panic.
pub trait Ops: Send {
    /// Allocates `rows` rows of `width` floats, all of them zero.
    fn alloc(&mut self, rows: usize, width: usize) -> Buf;
    /// Host memory for weights that are going to be loaded: at least `len` bytes, whatever is in them.
    fn host_alloc(&self, len: usize) -> HostBuf {
        HostBuf::zeroed(len)
    }
    /// Loads a matrix. Matrices are numbered from zero in the order of these calls.
    fn load_matrix(&mut self, matrix: HostMatrix) -> Weight;
    /// Loads constants.
    fn load_vector(&mut self, values: &[f32]) -> Vector;
    /// Loads rotary frequencies.
    fn load_rope(&mut self, spec: RopeSpec) -> Rope;
    /// Says how attention may take queries, keys, values and weights from here on, where a device
    /// has several ways: [`F32`](ActivationPrecision::F32), the default, forbids to round them to
    /// halves.
    fn set_attention_inputs(&mut self, _inputs: ActivationPrecision) {}
    /// Allocates a selection of positions, empty until
    /// [`select_positions`](Ops::select_positions) writes it.
    fn new_selection(&mut self) -> Selection;

    /// Overwrites the first rows of a buffer.
    fn write(&mut self, buf: Buf, values: &[f32]);
    /// Overwrites whole rows of a buffer, from the row `first` on.
    fn write_rows(&mut self, buf: Buf, first: usize, values: &[f32]);
    /// Reads the first `rows` rows of a buffer back.
    ///
    /// # Errors
    /// A failure of any op since the last read-back.
    fn read(&mut self, buf: Buf, rows: usize) -> Result<Vec<f32>, DeviceError>;

    /// `out[row] = table[tokens[row]]`.
    fn embed(&mut self, out: Cols, table: Weight, tokens: &[TokenId]);
    /// Divides every head of every row by its root mean square.
    fn rms_norm(&mut self, rows: usize, op: RmsNorm);
    /// [`rms_norm`](Ops::rms_norm), and multiplies by a function of a gate, after it or before.
    fn gated_rms_norm(&mut self, rows: usize, op: GatedRmsNorm);
    /// Normalises every head of every row to mean 0 and variance 1.
    fn layer_norm(&mut self, rows: usize, op: LayerNorm);
    /// `out = x`, head by head.
    fn copy(&mut self, rows: usize, out: Heads, x: Heads);
    /// Puts rows side by side: row `i` of `out` is the `n` rows of `x` from row `i * n` on, where `n` is
    /// `out.len / x.len`. Both are all columns of their buffers.
    fn join_rows(&mut self, rows: usize, out: Cols, x: Cols);
    /// Multiplies every head by its own block of rows of one matrix.
    fn head_product(&mut self, rows: usize, op: HeadProduct);
    /// Multiplies one input by several matrices.
    fn project(&mut self, rows: usize, x: Cols, outputs: &[Projection]);
    /// Rotates every head in place, by the position of its row.
    fn rope(&mut self, x: Heads, rope: Rope, spans: &[Span]);
    /// Appends to the cache of index keys and selects positions.
    fn select_positions(&mut self, op: SelectPositions, spans: &[Span]);
    /// Appends to the cache that pools are made of, and makes entries of those that are complete.
    fn pool_entries(&mut self, op: PoolEntries, spans: &[Span]);
    /// Appends to the cache of keys and values, for attention that comes later.
    fn append(&mut self, cache: Cache, append: KeysValues, spans: &[Span]);
    /// Appends to the cache of keys and values and attends to it.
    fn attention(&mut self, op: Attention, spans: &[Span]);
    /// [`rms_norm`](Ops::rms_norm) of values, queries and keys, [`rope`](Ops::rope) of the last two,
    /// [`attention`](Ops::attention) and [`sigmoid_gate`](Ops::sigmoid_gate). The contents of
    /// queries, keys and values are unspecified afterwards.
    fn gated_attention(&mut self, op: GatedAttention, spans: &[Span]);
    /// `x = x * sigmoid(gate)`.
    fn sigmoid_gate(&mut self, rows: usize, x: Heads, gate: Heads);
    /// A causal convolution of every channel, then `silu`.
    fn causal_conv(&mut self, op: CausalConv, spans: &[Span]);
    /// Runs the recurrence of the gated delta rule, row by row.
    fn delta_rule(&mut self, op: DeltaRule, spans: &[Span]);
    /// [`causal_conv`](Ops::causal_conv), [`delta_rule`](Ops::delta_rule) and
    /// [`gated_rms_norm`](Ops::gated_rms_norm). The outputs of the first two are unspecified
    /// afterwards, except where the norm writes to them.
    fn delta_net(&mut self, op: DeltaNet, spans: &[Span]);
    /// Runs the recurrence of a state-space layer, row by row.
    fn state_space(&mut self, op: StateSpace, spans: &[Span]);
    /// `acc += bias`, in every row.
    fn add_bias(&mut self, rows: usize, acc: Cols, bias: Vector);
    /// `acc += x`.
    fn add(&mut self, rows: usize, acc: Cols, x: Cols);
    /// `x = x * factor`.
    fn scale(&mut self, rows: usize, x: Cols, factor: f32);
    /// `x = silu(x * factor)`.
    fn scaled_silu(&mut self, rows: usize, x: Cols, factor: f32);
    /// Reads one row of columns from several streams, through gates.
    fn mix_streams(&mut self, rows: usize, op: MixStreams);
    /// Adds columns to several streams, to each as much as its gate says.
    fn join_streams(&mut self, rows: usize, op: JoinStreams);
    /// What a hyper-connection does with the streams of each row, from logits.
    fn stream_shares(&mut self, rows: usize, op: StreamShares);
    /// Reads one row of columns from several streams, by shares.
    fn weigh_streams(&mut self, rows: usize, op: WeighStreams);
    /// Mixes several streams with each other, and adds columns to them.
    fn blend_streams(&mut self, rows: usize, op: BlendStreams);
    /// Gates columns by the similarity of two rows of streams, for every stream.
    fn similarity_gate(&mut self, rows: usize, op: SimilarityGate);
    /// What stands between the products of a gated MLP; `out` may be `gate` itself.
    fn activate(
        &mut self,
        rows: usize,
        activation: GatedActivation,
        out: Cols,
        gate: Cols,
        up: Cols,
    );
    /// What stands between the products of an MLP without a gate, in place of the first's output.
    fn activate_plain(&mut self, rows: usize, activation: PlainActivation, x: Cols);
    /// Runs experts that are in the host's memory.
    fn experts(&mut self, op: Experts<'_>);
    /// Adds the weighted outputs of experts to the residual stream.
    fn combine(&mut self, rows: usize, op: Combine<'_>);

    /// Chooses experts and reads the choice back.
    ///
    /// # Errors
    /// A failure of any op since the last read-back.
    fn route(&mut self, rows: usize, op: Route) -> Result<Routing, DeviceError>;
    /// Chooses experts as [`route`](Ops::route) does, and reuses the memory of `out`.
    ///
    /// # Errors
    /// A failure of any op since the last read-back.
    fn route_into(&mut self, rows: usize, op: Route, out: &mut Routing) -> Result<(), DeviceError> {
        *out = self.route(rows, op)?;
        Ok(())
    }
    /// Reads `head @ x[row]` back for each of `rows`: `rows.len() * vocab` floats.
    ///
    /// # Errors
    /// A failure of any op since the last read-back.
    fn logits(
        &mut self,
        rows: &[usize],
        x: Cols,
        head: Weight,
        extras: LogitsExtras<'_>,
    ) -> Result<Vec<f32>, DeviceError>;
    /// Reads the `n` highest of `head @ x[row]` back for each of `rows`, the highest first,
    /// among equals the lower token first. Logits of minus infinity are left out.
    ///
    /// Returns `None` where the caller should read all [`logits`](Ops::logits) instead: where
    /// a row has damaged or extremely low logits, where `n` is too large for a selection to
    /// pay, or where the backend computes in the host's memory. The extras may be missing
    /// then.
    ///
    /// # Errors
    /// A failure of any op since the last read-back.
    fn top_logits(
        &mut self,
        _rows: &[usize],
        _n: usize,
        _x: Cols,
        _head: Weight,
        _extras: LogitsExtras<'_>,
    ) -> Result<Option<Vec<Vec<TokenLogit>>>, DeviceError> {
        Ok(None)
    }
}

/// A step that is likely to follow, recorded while the device still computes the logits
/// that decide its tokens.
pub struct PrerecordedStep<'a> {
    /// The rows of the step, in order.
    pub spans: &'a [Span],
    /// Records the step with placeholder tokens, which
    /// [`replay_step`](Recording::replay_step) replaces, and returns whether it could. It
    /// reads nothing back.
    pub record: &'a mut dyn FnMut(&mut dyn Backend) -> bool,
}

/// Optional outputs of [`Ops::logits`] and [`Ops::top_logits`].
#[derive(Debug, Default)]
pub struct LogitsExtras<'a> {
    /// Also reads hidden states back.
    pub hidden_rows: Option<HiddenRows<'a>>,
    /// Also records this step.
    pub next_step: Option<PrerecordedStep<'a>>,
}

/// Hidden states to read back together with logits.
#[derive(Debug)]
pub struct HiddenRows<'a> {
    /// How many rows, from the first row of the buffer that is the head's input.
    pub n: usize,
    /// Overwritten with whole rows of that buffer.
    pub into: &'a mut Vec<f32>,
}

impl fmt::Debug for PrerecordedStep<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrerecordedStep").field("spans", &self.spans).finish_non_exhaustive()
    }
}
