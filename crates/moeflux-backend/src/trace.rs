//! A backend that computes nothing and records its calls as text.

use std::fmt::{self, Write as _};
use std::ops::Range;

use moeflux_core::{ExpertId, TokenId};

use crate::{
    Attention, Backend, BlendStreams, Buf, Cache, CacheSpec, CausalConv, Cols, Combine, Decay,
    DeltaNet, DeltaRule, DeviceError, Experts, GateFunction, GatedActivation, GatedAttention,
    GatedRmsNorm, HeadProduct, Heads, HostMatrix, JoinStreams, KeysValues, LayerNorm, LogitsExtras,
    MixStreams, Ops, PlainActivation, PoolEntries, Projection, RmsNorm, Rope, RopeSpec, Route,
    Routing, SelectPositions, Selection, Sequence, Sequences, SimilarityGate, Span, StateSnapshot,
    StateSpace, StreamShares, ValueOrder, Vector, WeighStreams, Weight,
};

/// Records ops as lines of text, for snapshot tests of model code.
///
/// Its router always chooses experts `0..top_k` with equal weights, and its
/// logits are all zero.
#[derive(Debug, Default)]
pub struct Trace {
    text: String,
    /// Columns of each buffer.
    widths: Vec<usize>,
    allocated: usize,
    largest: usize,
    n_vectors: u32,
    n_ropes: u32,
    n_selections: u32,
    /// The caches of every sequence.
    sequences: Vec<Vec<CacheSpec>>,
    /// Outputs of each matrix.
    matrix_rows: Vec<usize>,
}

impl Trace {
    /// The ops so far, one a line, and forgets them.
    pub fn take_text(&mut self) -> String {
        std::mem::take(&mut self.text)
    }

    /// Bytes of all buffers together, had they been allocated.
    pub fn allocated_bytes(&self) -> usize {
        self.allocated
    }

    /// Bytes of the largest buffer, had it been allocated.
    pub fn largest_bytes(&self) -> usize {
        self.largest
    }

    fn log(&mut self, line: fmt::Arguments<'_>) {
        self.text.write_fmt(line).expect("a string takes any text");
        self.text.push('\n');
    }
}

impl fmt::Display for Cols {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b{}[{}..{}]", self.buf.0, self.start, self.start + self.len)
    }
}

impl fmt::Display for Heads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b{}[{}+{}x{}", self.buf.0, self.start, self.n_heads, self.head_dim)?;
        if self.stride != self.head_dim {
            write!(f, "/{}", self.stride)?;
        }
        f.write_str("]")
    }
}

/// Spans as `sequence@position+rows`.
struct Spans<'a>(&'a [Span]);

impl fmt::Display for Spans<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, span) in self.0.iter().enumerate() {
            let comma = if i > 0 { " " } else { "" };
            write!(f, "{comma}s{}@{}+{}", span.sequence.0, span.position, span.rows.len())?;
        }
        Ok(())
    }
}

fn next(counter: &mut u32) -> u32 {
    *counter += 1;
    *counter - 1
}

impl Backend for Trace {}

impl Ops for Trace {
    fn alloc(&mut self, rows: usize, width: usize) -> Buf {
        self.allocated += rows * width * size_of::<f32>();
        self.largest = self.largest.max(rows * width * size_of::<f32>());
        self.widths.push(width);
        Buf(u32::try_from(self.widths.len() - 1).expect("few buffers"))
    }

    fn load_matrix(&mut self, matrix: HostMatrix) -> Weight {
        self.matrix_rows.push(matrix.rows);
        Weight(u32::try_from(self.matrix_rows.len() - 1).expect("few matrices"))
    }

    fn load_vector(&mut self, _values: &[f32]) -> Vector {
        Vector(next(&mut self.n_vectors))
    }

    fn load_rope(&mut self, _spec: RopeSpec) -> Rope {
        Rope(next(&mut self.n_ropes))
    }

    fn write(&mut self, buf: Buf, values: &[f32]) {
        self.log(format_args!("b{} = {} floats", buf.0, values.len()));
    }

    fn write_rows(&mut self, buf: Buf, first: usize, values: &[f32]) {
        self.log(format_args!("b{} from {first} = {} floats", buf.0, values.len()));
    }

    fn read(&mut self, buf: Buf, rows: usize) -> Result<Vec<f32>, DeviceError> {
        self.log(format_args!("read b{} x{rows}", buf.0));
        Ok(vec![0.0; rows * self.widths[buf.0 as usize]])
    }

    fn new_selection(&mut self) -> Selection {
        Selection(next(&mut self.n_selections))
    }

    fn embed(&mut self, out: Cols, table: Weight, tokens: &[TokenId]) {
        let tokens: Vec<u32> = tokens.iter().map(|token| token.0).collect();
        self.log(format_args!("{out} = embed w{} {tokens:?}", table.0));
    }

    fn rms_norm(&mut self, rows: usize, op: RmsNorm) {
        self.log(format_args!("{} = rms_norm {} v{} x{rows}", op.out, op.x, op.weight.0));
    }

    fn gated_rms_norm(&mut self, rows: usize, op: GatedRmsNorm) {
        let RmsNorm { out, x, weight, .. } = op.norm;
        let gate = match op.function {
            GateFunction::Silu => "",
            GateFunction::Sigmoid => " sigmoid",
        };
        let first = if op.gates_input { " first" } else { "" };
        let (weight, of) = (weight.0, op.gate);
        self.log(format_args!("{out} = gated_rms_norm {x} v{weight}{gate} {of}{first} x{rows}"));
    }

    fn project(&mut self, rows: usize, x: Cols, outputs: &[Projection]) {
        for projection in outputs {
            self.log(format_args!(
                "{} = project w{} {x} x{rows}",
                projection.out, projection.weight.0
            ));
        }
    }

    fn rope(&mut self, x: Heads, rope: Rope, spans: &[Span]) {
        self.log(format_args!("{x} = rope r{} {}", rope.0, Spans(spans)));
    }

    fn layer_norm(&mut self, rows: usize, op: LayerNorm) {
        let LayerNorm { out, x, weight, bias, .. } = op;
        self.log(format_args!("{out} = layer_norm {x} v{} v{} x{rows}", weight.0, bias.0));
    }

    fn copy(&mut self, rows: usize, out: Heads, x: Heads) {
        self.log(format_args!("{out} = {x} x{rows}"));
    }

    fn join_rows(&mut self, rows: usize, out: Cols, x: Cols) {
        self.log(format_args!("{out} = join_rows {x} x{rows}"));
    }

    fn head_product(&mut self, rows: usize, op: HeadProduct) {
        let HeadProduct { out, x, weight, first_row, row_stride, transposed } = op;
        let t = if transposed { "^T" } else { "" };
        let weight = weight.0;
        self.log(format_args!(
            "{out} = head_product w{weight}{t} rows {first_row}/{row_stride} {x} x{rows}"
        ));
    }

    fn select_positions(&mut self, op: SelectPositions, spans: &[Span]) {
        let SelectPositions { out, q, k, weights, cache, top_k, pools, .. } = op;
        let k = k.map(|k| format!(" {k}")).unwrap_or_default();
        let (out, cache, spans) = (out.0, cache.0, Spans(spans));
        let weights = weights.map(|weights| format!(" {weights}")).unwrap_or_default();
        let pools = pools.map(|pools| format!(" pools of {}", pools.size)).unwrap_or_default();
        self.log(format_args!(
            "selection {out} = top {top_k}{pools} {q}{k}{weights} c{cache} {spans}"
        ));
    }

    fn pool_entries(&mut self, op: PoolEntries, spans: &[Span]) {
        let PoolEntries { x, rows, entries, .. } = op;
        let (rows, entries, spans) = (rows.0, entries.0, Spans(spans));
        self.log(format_args!("c{entries} += entries of c{rows} += {x} {spans}"));
    }

    fn add_bias(&mut self, rows: usize, acc: Cols, bias: Vector) {
        self.log(format_args!("{acc} += v{} x{rows}", bias.0));
    }

    fn append(&mut self, cache: Cache, KeysValues { k, v }: KeysValues, spans: &[Span]) {
        let values = v.map(|v| format!(" {v}")).unwrap_or_default();
        self.log(format_args!("c{} += {k}{values} {}", cache.0, Spans(spans)));
    }

    fn attention(&mut self, op: Attention, spans: &[Span]) {
        let Attention { out, q, append, cache, window, sinks, selection, looks_ahead, .. } = op;
        let heads = append.iter().flat_map(|KeysValues { k, v }| [Some(*k), *v]).flatten();
        let appended: String = heads.map(|heads| format!(" {heads}")).collect();
        let window = window.map(|window| format!(" window {window}")).unwrap_or_default();
        let sinks = sinks.map(|sinks| format!(" sinks v{}", sinks.0)).unwrap_or_default();
        let selection =
            selection.map(|selection| format!(" selection {}", selection.0)).unwrap_or_default();
        let ahead = if looks_ahead { " ahead" } else { "" };
        let (cache, spans) = (cache.0, Spans(spans));
        self.log(format_args!(
            "{out} = attention {q}{appended} c{cache}{window}{sinks}{selection}{ahead} {spans}"
        ));
    }

    fn gated_attention(&mut self, op: GatedAttention, spans: &[Span]) {
        op.run_parts(self, spans);
    }

    fn sigmoid_gate(&mut self, rows: usize, x: Heads, gate: Heads) {
        self.log(format_args!("{x} *= sigmoid {gate} x{rows}"));
    }

    fn causal_conv(&mut self, op: CausalConv, spans: &[Span]) {
        let CausalConv { out, x, weight, bias, cache } = op;
        let (weight, cache, spans) = (weight.0, cache.0, Spans(spans));
        let bias = bias.map(|bias| format!(" + v{}", bias.0)).unwrap_or_default();
        self.log(format_args!("{out} = causal_conv {x} v{weight}{bias} c{cache} {spans}"));
    }

    fn delta_rule(&mut self, op: DeltaRule, spans: &[Span]) {
        let DeltaRule { out, q, k, v, order, decay, a, b, cache, .. } = op;
        let (cache, spans) = (cache.0, Spans(spans));
        let decay = match decay {
            Decay::Head => String::new(),
            Decay::Columns => " columns".to_owned(),
            Decay::Bounded { bound } => format!(" bounded {bound}"),
        };
        let order = if order == ValueOrder::Tiled { " tiled" } else { "" };
        self.log(format_args!(
            "{out} = delta_rule {q} {k} {v}{order}{decay} {a} {b} c{cache} {spans}"
        ));
    }

    fn delta_net(&mut self, op: DeltaNet, spans: &[Span]) {
        op.run_parts(self, spans);
    }

    fn state_space(&mut self, op: StateSpace, spans: &[Span]) {
        let StateSpace { out, x, b, c, dt, cache, .. } = op;
        let (cache, spans) = (cache.0, Spans(spans));
        self.log(format_args!("{out} = state_space {x} {b} {c} {dt} c{cache} {spans}"));
    }

    fn add(&mut self, rows: usize, acc: Cols, x: Cols) {
        self.log(format_args!("{acc} += {x} x{rows}"));
    }

    fn scale(&mut self, rows: usize, x: Cols, factor: f32) {
        self.log(format_args!("{x} *= {factor} x{rows}"));
    }

    fn scaled_silu(&mut self, rows: usize, x: Cols, factor: f32) {
        self.log(format_args!("{x} = silu {x} * {factor} x{rows}"));
    }

    fn mix_streams(&mut self, rows: usize, op: MixStreams) {
        let MixStreams { out, streams, gates } = op;
        self.log(format_args!("{out} = mix_streams {streams} {gates} x{rows}"));
    }

    fn stream_shares(&mut self, rows: usize, op: StreamShares) {
        let StreamShares { out, logits, n_streams, n_rounds, .. } = op;
        self.log(format_args!("{out} = stream_shares {logits} {n_streams} {n_rounds} x{rows}"));
    }

    fn weigh_streams(&mut self, rows: usize, op: WeighStreams) {
        let WeighStreams { out, streams, shares } = op;
        let shares = shares.map(|shares| format!(" {shares}")).unwrap_or_default();
        self.log(format_args!("{out} = weigh_streams {streams}{shares} x{rows}"));
    }

    fn blend_streams(&mut self, rows: usize, op: BlendStreams) {
        let BlendStreams { streams, x, shares } = op;
        self.log(format_args!("{streams} = blend_streams {streams} {x} {shares} x{rows}"));
    }

    fn join_streams(&mut self, rows: usize, op: JoinStreams) {
        let JoinStreams { streams, x, gates, .. } = op;
        self.log(format_args!("{streams} += join_streams {x} {gates} x{rows}"));
    }

    fn similarity_gate(&mut self, rows: usize, op: SimilarityGate) {
        let SimilarityGate { out, a, b, x, .. } = op;
        self.log(format_args!("{out} = similarity_gate {a} {b} {x} x{rows}"));
    }

    fn activate(
        &mut self,
        rows: usize,
        activation: GatedActivation,
        out: Cols,
        gate: Cols,
        up: Cols,
    ) {
        let name = match activation {
            GatedActivation::Swiglu => "swiglu",
            GatedActivation::ClampedSwiglu { .. } => "clamped_swiglu",
            GatedActivation::BoundedSwiglu { .. } => "bounded_swiglu",
            GatedActivation::GeluTanh => "gelu_tanh",
        };
        self.log(format_args!("{out} = {name} {gate} {up} x{rows}"));
    }

    fn activate_plain(&mut self, rows: usize, activation: PlainActivation, x: Cols) {
        let name = match activation {
            PlainActivation::Relu2 => "relu2",
            PlainActivation::GeluTanh => "gelu_tanh",
            PlainActivation::GeluErf => "gelu_erf",
        };
        self.log(format_args!("{x} = {name} {x} x{rows}"));
    }

    fn experts(&mut self, op: Experts<'_>) {
        for call in op.calls {
            let slots: Vec<u32> = call.rows.iter().map(|row| row.slot).collect();
            let expert = call.expert.key.expert.0;
            self.log(format_args!("b{}{slots:?} = expert {expert} {}", op.out.0, op.x));
        }
    }

    fn combine(&mut self, rows: usize, op: Combine<'_>) {
        let shared = if op.shared.is_some() { " shared" } else { "" };
        self.log(format_args!("{} += combine b{}{shared} x{rows}", op.acc, op.slots.0));
    }

    fn route(&mut self, rows: usize, op: Route) -> Result<Routing, DeviceError> {
        self.log(format_args!("route {} top {} x{rows}", op.logits, op.top_k));
        let experts = (0..rows).flat_map(|_| 0..op.top_k);
        let experts = experts.filter_map(|id| u16::try_from(id).ok()).map(ExpertId).collect();
        Ok(Routing { experts, weights: vec![1.0 / op.top_k as f32; rows * op.top_k] })
    }

    fn logits(
        &mut self,
        rows: &[usize],
        x: Cols,
        head: Weight,
        extras: LogitsExtras<'_>,
    ) -> Result<Vec<f32>, DeviceError> {
        self.log(format_args!("logits w{} {x} rows {rows:?}", head.0));
        if let Some(hidden) = extras.hidden_rows {
            *hidden.into = self.read(x.buf, hidden.n)?;
        }
        Ok(vec![0.0; rows.len() * self.matrix_rows[head.0 as usize]])
    }
}

impl Sequences for Trace {
    fn new_sequence(&mut self, specs: &[CacheSpec]) -> Sequence {
        self.sequences.push(specs.to_vec());
        Sequence(u32::try_from(self.sequences.len() - 1).expect("few sequences"))
    }

    fn clear_sequence(&mut self, sequence: Sequence) {
        self.log(format_args!("clear s{}", sequence.0));
    }

    fn drop_sequence(&mut self, sequence: Sequence) {
        self.log(format_args!("drop s{}", sequence.0));
    }

    fn forget_passed(&mut self, _sequence: Sequence, _ends: &[usize]) {}

    fn truncate_sequence(&mut self, sequence: Sequence, len: usize) {
        self.log(format_args!("truncate s{} to {len}", sequence.0));
    }

    fn snapshot_states(&mut self, snapshots: &[StateSnapshot]) {
        for StateSnapshot { sequence, rows, to } in snapshots {
            self.log(format_args!("states of s{} = s{} after {rows} rows", to.0, sequence.0));
        }
    }

    fn reserve_states(&mut self, _sequence: Sequence) -> bool {
        true
    }

    fn swap_states(&mut self, one: Sequence, other: Sequence) {
        self.log(format_args!("swap states of s{} and s{}", one.0, other.0));
    }

    fn save_cache(
        &mut self,
        sequence: Sequence,
        cache: Cache,
        positions: Range<usize>,
    ) -> Result<Vec<u8>, DeviceError> {
        self.log(format_args!("save s{} c{} {positions:?}", sequence.0, cache.0));
        let spec = self.sequences[sequence.0 as usize][cache.0 as usize];
        Ok(vec![0; spec.saved_bytes(&positions)])
    }

    fn load_cache(
        &mut self,
        sequence: Sequence,
        cache: Cache,
        positions: Range<usize>,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        let n = bytes.len();
        self.log(format_args!("load s{} c{} {positions:?}: {n} bytes", sequence.0, cache.0));
        Ok(())
    }
}
