//! Experts that the device chooses, against the same chosen by the host: not a
//! bit may differ.

use std::sync::Arc;

use moeflux_backend::{
    ActivationPrecision, Buf, Cols, Combine, ExpertBiases, ExpertCall, ExpertFunction,
    ExpertResidency, ExpertRow, Experts, GatedActivation, Mlp, MoeOnDevice, Ops, Route, Scoring,
    Shared, SharedExpert,
};
use moeflux_core::quant::{Affine, BlockType, Float, MatrixFormat, SmallScale};
use moeflux_core::{
    Expert, ExpertId, ExpertKey, ExpertLayout, ExpertMemory, GateUp, HostBuf, LayerIdx,
    MatrixLayout, PartSpan, SplitMix64,
};

use super::{context, matrix, random_word, set_small_scales};
use crate::backend::new_backend;
use crate::state::gpu::Wgpu;
use crate::tests::metal::cases::Capturing;
use crate::{Context, Tiles};

pub(super) const HIDDEN: usize = 128;
pub(super) const INNER: usize = 96;
pub(super) const TOP_K: usize = 3;

/// Random numbers from -0.5 to 0.5.
pub(super) fn floats(random: &mut SplitMix64, n: usize) -> Vec<f32> {
    random.floats(n).iter().map(|number| 0.5 * number).collect()
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) format: MatrixFormat,
    pub(super) inputs: ActivationPrecision,
    pub(super) alternates: bool,
    pub(super) has_biases: bool,
    pub(super) has_shared: bool,
    pub(super) n_experts: usize,
    /// Columns of activations.
    pub(super) inner: usize,
    pub(super) activation: GatedActivation,
}

pub(super) fn layout(case: Case) -> ExpertLayout {
    let Case { format, alternates, inner, .. } = case;
    let mut at = 0;
    let mut part = |len| {
        let span = PartSpan { extent: 0, offset: at, len };
        // As kernels can read it in place.
        at = (at + len).next_multiple_of(16);
        span
    };
    let mut matrix = |rows, cols| MatrixLayout {
        rows,
        cols,
        format,
        weight: part(rows * format.row_bytes(cols)),
        scales: part(format.scale_bytes(rows, cols)),
        biases: part(format.bias_bytes(rows, cols)),
    };
    let gate_up = if alternates {
        GateUp::Alternating(matrix(2 * inner, HIDDEN))
    } else {
        GateUp::Split { gate: matrix(inner, HIDDEN), up: matrix(inner, HIDDEN) }
    };
    let down = matrix(HIDDEN, inner);
    ExpertLayout { extents: vec![at], gate_up, down }
}

/// An expert of small parameters.
fn expert(layout: &Arc<ExpertLayout>, id: u16) -> Arc<Expert> {
    expert_in(HostBuf::zeroed(layout.record_bytes()), 0, layout, id)
}

/// An expert of small parameters that begins at a byte of a buffer.
pub(super) fn expert_in(
    mut buf: HostBuf,
    start: usize,
    layout: &Arc<ExpertLayout>,
    id: u16,
) -> Arc<Expert> {
    let mut random = SplitMix64::new(7 + u64::from(id));
    for matrix in layout.matrices() {
        let is_dense = matches!(matrix.format, MatrixFormat::Dense(_));
        for (span, is_float) in
            [(matrix.weight, is_dense), (matrix.scales, true), (matrix.biases, true)]
        {
            for pair in buf[start + span.offset..][..span.len].as_chunks_mut::<2>().0 {
                // 0x3c00 begins the numbers near 0.01 in BF16.
                let word = random_word(&mut random);
                *pair = (if is_float { 0x3c00 | word & 0x80ff } else { word }).to_le_bytes();
            }
        }
        if let MatrixFormat::Micro(micro) = matrix.format
            && micro.scale == SmallScale::E4M3
        {
            // No NaN.
            let scales = &mut buf[start + matrix.scales.offset..][..matrix.scales.len];
            scales.iter_mut().for_each(|scale| *scale &= 0x3f);
        }
        if let MatrixFormat::Ggml(it) = matrix.format {
            set_small_scales(it, &mut buf[start + matrix.weight.offset..][..matrix.weight.len]);
        }
    }
    let key = ExpertKey { layer: LayerIdx(0), expert: ExpertId(id) };
    let memory = ExpertMemory::Owned { buf, starts: vec![start] };
    Arc::new(Expert { key, layout: Arc::clone(layout), memory })
}

pub(super) fn cols(b: &mut Wgpu, rows: usize, width: usize, values: &[f32]) -> Cols {
    let buf = b.alloc(rows, width);
    b.write(buf, values);
    Cols { buf, start: 0, len: width }
}

/// What both ways begin with.
pub(super) struct Start {
    pub(super) route: Route,
    pub(super) x: Cols,
    pub(super) acc: Cols,
    pub(super) slots: Buf,
    pub(super) function: ExpertFunction,
    pub(super) shared: Option<SharedExpert>,
}

fn shared_expert(b: &mut Wgpu, case: Case, rows: usize) -> SharedExpert {
    let Case { format, inputs, inner, .. } = case;
    let mut random = SplitMix64::new(5);
    let [gate, up, activated, out] =
        [inner, inner, inner, HIDDEN].map(|width| cols(b, rows, width, &[]));
    let scale = cols(b, rows, 1, &floats(&mut random, rows));
    let mut matrix = |rows, cols| matrix(b, format, rows, cols, inputs);
    let mlp = Mlp::Gated {
        gate_proj: matrix(inner, HIDDEN),
        up_proj: matrix(inner, HIDDEN),
        down_proj: matrix(HIDDEN, inner),
        activation: case.activation,
        gate,
        up,
        activated,
    };
    SharedExpert { mlp, shared: Shared { out, gate: Some(scale) } }
}

fn begin(b: &mut Wgpu, case: Case, rows: usize) -> Start {
    begin_with(b, case, rows, 99)
}

pub(super) fn begin_with(b: &mut Wgpu, case: Case, rows: usize, seed: u64) -> Start {
    let n_experts = case.n_experts;
    let mut random = SplitMix64::new(seed);
    // Experts are the less liked the higher they are counted: some get most rows, some none.
    let slope = |i: usize| 1.5 * (i % n_experts) as f32 / n_experts as f32;
    let logits: Vec<f32> = floats(&mut random, rows * n_experts)
        .into_iter()
        .enumerate()
        .map(|(i, value)| value - slope(i))
        .collect();
    let logits = cols(b, rows, n_experts, &logits);
    let x = floats(&mut random, rows * HIDDEN);
    let x = cols(b, rows, HIDDEN, &x);
    let acc = floats(&mut random, rows * HIDDEN);
    let acc = cols(b, rows, HIDDEN, &acc);
    let slots = b.alloc(rows * TOP_K, HIDDEN);
    let scoring = Scoring::softmax(true);
    let biases = case.has_biases.then(|| ExpertBiases {
        gate: b.load_vector(&floats(&mut random, n_experts * case.inner)),
        up: b.load_vector(&floats(&mut random, n_experts * case.inner)),
        down: b.load_vector(&floats(&mut random, n_experts * HIDDEN)),
    });
    let shared = case.has_shared.then(|| shared_expert(b, case, rows));
    let function = ExpertFunction::Gated { activation: case.activation, biases };
    Start { route: Route { logits, top_k: TOP_K, scoring }, x, acc, slots, function, shared }
}

pub(super) fn bits(b: &mut Wgpu, acc: Cols, rows: usize) -> Vec<u32> {
    b.read(acc.buf, rows).expect("the device works").into_iter().map(f32::to_bits).collect()
}

/// The host groups the rows; also how many chose each expert.
fn by_host(b: &mut Wgpu, case: Case, rows: usize) -> (Vec<u32>, Vec<usize>) {
    let layout = Arc::new(layout(case));
    let Start { route, x, acc, slots, function, shared } = begin(b, case, rows);
    let routing = b.route(rows, route).expect("the device works");
    let mut by_expert: Vec<Vec<ExpertRow>> = vec![Vec::new(); case.n_experts];
    for (slot, id) in routing.experts.iter().enumerate() {
        let (row, slot) = ((slot / TOP_K) as u32, slot as u32);
        by_expert[id.idx()].push(ExpertRow { row, slot });
    }
    let counts = by_expert.iter().map(Vec::len).collect();
    let calls: Vec<ExpertCall> = (0..)
        .zip(by_expert)
        .filter(|(_, rows)| !rows.is_empty())
        .map(|(id, rows)| ExpertCall { expert: expert(&layout, id), rows })
        .collect();
    let inputs = case.inputs;
    b.experts(Experts { out: slots, x, rows, inputs, function, calls: &calls });
    let weights = &routing.weights;
    if let Some(shared) = shared {
        shared.mlp.run_parts(b, rows, x, shared.shared.out);
    }
    let shared = shared.map(|shared| shared.shared);
    b.combine(rows, Combine { acc, slots, top_k: TOP_K, weights, shared });
    (bits(b, acc, rows), counts)
}

pub(super) fn by_device(b: &mut Wgpu, case: Case, rows: usize) -> Vec<u32> {
    let layout = Arc::new(layout(case));
    let Start { route, x, acc, slots, function, shared } = begin(b, case, rows);
    if let Some(shared) = shared {
        b.register_shared(LayerIdx(0), shared.mlp.weights());
    }
    let ids = 0..u16::try_from(case.n_experts).unwrap();
    assert!(ids.clone().all(|id| b.load(&expert(&layout, id), case.n_experts)));
    assert!(b.is_layer_resident(LayerIdx(0), rows));
    b.moe_on_device(
        rows,
        MoeOnDevice {
            layer: LayerIdx(0),
            route,
            x,
            inputs: case.inputs,
            function,
            slots,
            acc,
            shared,
        },
    );
    bits(b, acc, rows)
}

fn check(context: &Arc<Context>, case: Case, tiles: Tiles) {
    let capturing = Capturing::new(context);
    let open = || {
        let mut b = capturing.open();
        b.fix_tiles(tiles);
        b
    };
    let (mut n_few, mut n_many, mut n_none) = (0, 0, 0);
    // Few, one tile of an expert, and more.
    for rows in [9, 64, 70, 300] {
        let (want, counts) = by_host(&mut open(), case, rows);
        n_few += counts.iter().filter(|n_rows| (1..=8).contains(*n_rows)).count();
        n_many += counts.iter().filter(|n_rows| **n_rows > 8).count();
        n_none += counts.iter().filter(|n_rows| **n_rows == 0).count();
        // All at once; parts that end within experts.
        for n_places in [usize::MAX / (8 * INNER), 37] {
            let mut b = open();
            b.part_bytes = 8 * INNER * n_places;
            let got = by_device(&mut b, case, rows);
            assert!(got == want, "{case:?} {tiles:?}, {rows} rows, {n_places} at once");
        }
    }
    assert!(n_few > 0 && n_many > 0 && n_none > 0, "{case:?}: {n_few}, {n_many}, {n_none}");
}

#[test]
fn rows_have_the_same_bits_whoever_chooses_their_experts() {
    let Some(context) = context() else { return };
    let affine = MatrixFormat::Affine(Affine::new(4, 32, Float::BF16));
    let dense = MatrixFormat::Dense(Float::BF16);
    let case = |format, inputs, alternates, has_biases| Case {
        format,
        inputs,
        alternates,
        has_biases,
        has_shared: !has_biases,
        n_experts: 40,
        inner: INNER,
        activation: GatedActivation::Swiglu,
    };
    check(&context, case(affine, ActivationPrecision::Int16, false, true), Tiles::F32);
    check(&context, case(affine, ActivationPrecision::F32, true, false), Tiles::F32);
    check(&context, case(dense, ActivationPrecision::F32, false, false), Tiles::F32);
    let blocks = MatrixFormat::Ggml(BlockType::Q5_0);
    check(&context, case(blocks, ActivationPrecision::Int16, false, false), Tiles::F32);
    if context.has_coop_matrix {
        check(&context, case(affine, ActivationPrecision::Int16, false, false), Tiles::CoopMatrix);
    } else if context.has_f16 {
        check(&context, case(affine, ActivationPrecision::Int8, true, true), Tiles::Emulated);
    }
}

#[test]
fn a_shared_expert_beside_those_of_few_rows_changes_no_bit_and_takes_no_kernel() {
    let Some(context) = context() else { return };
    let affine = MatrixFormat::Affine(Affine::new(4, 32, Float::BF16));
    let dense = MatrixFormat::Dense(Float::BF16);
    for (format, inputs) in [
        (affine, ActivationPrecision::Int16),
        (affine, ActivationPrecision::Int8),
        (dense, ActivationPrecision::F32),
        (MatrixFormat::Ggml(BlockType::Q8_0), ActivationPrecision::Int16),
    ] {
        let has = |has_shared| Case {
            format,
            inputs,
            alternates: false,
            has_biases: false,
            has_shared,
            n_experts: 11,
            inner: INNER,
            activation: GatedActivation::Swiglu,
        };
        for rows in [1, 3, 8, 50] {
            let open = || new_backend(Arc::clone(&context), None);
            let n_kernels = |case| {
                let mut b = open();
                by_device(&mut b, case, rows);
                b.counters().stats().kernels
            };
            let got = by_device(&mut open(), has(true), rows);
            let mut apart = open();
            apart.fuses = false;
            assert!(got == by_device(&mut apart, has(true), rows), "{format:?}, {rows} rows apart");
            assert!(got == by_host(&mut open(), has(true), rows).0, "{format:?}, {rows} rows");
            assert!(got != by_device(&mut open(), has(false), rows), "it counts for something");
            if context.has_many_bindings() {
                assert_eq!(n_kernels(has(true)), n_kernels(has(false)));
            }
        }
    }
}
