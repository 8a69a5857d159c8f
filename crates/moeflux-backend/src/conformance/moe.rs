//! Routing, experts and their combination.

use std::sync::Arc;

use moeflux_core::quant::MatrixFormat;
use moeflux_core::{
    Expert, ExpertId, ExpertKey, ExpertLayout, ExpertMemory, GateUp, HostBuf, LayerIdx,
    MatrixLayout, PartSpan,
};

use super::products::{MatrixParts, MatrixSpec, formats, group_size, load, matrix_bytes};
use super::suite::{Numbers, Products, Suite, filled, read};
use crate::{
    ActivationPrecision, Backend, Combine, ExpertBiases, ExpertCall, ExpertFunction, ExpertGroups,
    ExpertRow, Experts, GatedActivation, Mlp, MoeOnDevice, PerExpert, PlainActivation,
    ResidencyRequest, ResidentCall, ResidentExperts, Route, Routing, Scoring, Shared, SharedExpert,
};

pub(super) fn check(suite: &Suite<'_>) {
    for (n_experts, top_k) in [(1, 1), (5, 5), (33, 3), (512, 10)] {
        for renormalise in [false, true] {
            softmax_route(suite, n_experts, top_k, None, renormalise);
            sigmoid_route(suite, n_experts, top_k, None, renormalise);
            root_route(suite, n_experts, top_k, renormalise);
        }
        route(suite, n_experts, top_k, &|_| Scoring::SoftmaxOfChosen);
    }
    for (n_experts, top_k, n, kept) in [(6, 4, 3, 2), (33, 8, 3, 1), (256, 8, 8, 4)] {
        sigmoid_route(suite, n_experts, top_k, Some(ExpertGroups { n, kept }), true);
        softmax_route(suite, n_experts, top_k, Some(ExpertGroups { n, kept }), false);
    }
    for (rows, width, top_k) in [(1, 17, 1), (4, 256, 3)] {
        combine(suite, rows, width, top_k);
    }
}

/// Experts in these formats.
pub(super) fn check_formats(suite: &Suite<'_>, formats: &[MatrixFormat]) {
    for format in formats.iter().copied() {
        for inputs in
            [ActivationPrecision::F32, ActivationPrecision::Int16, ActivationPrecision::Int8]
        {
            experts(suite, Shape { format, order: Order::Split }, inputs, Style::Swiglu);
        }
        let (int16, float) = (ActivationPrecision::Int16, ActivationPrecision::F32);
        for (order, inputs, style) in [
            (Order::Alternating, int16, Style::Swiglu),
            (Order::Joined, int16, Style::Swiglu),
            (Order::Split, int16, Style::GptOss),
            (Order::Alternating, float, Style::GptOss),
            (Order::Split, int16, Style::Gelu),
            (Order::Split, int16, Style::Bounded),
            (Order::Up, int16, Style::Relu2),
            (Order::Up, float, Style::Relu2),
        ] {
            experts(suite, Shape { format, order }, inputs, style);
        }
    }
}

/// A layer that the device holds, if it can, and else the ops that are the same.
pub(super) fn check_held(suite: &Suite<'_>) {
    let affine = formats()[0];
    let (split, other) = (Order::Split, formats()[9]);
    let orders = [(affine, split), (affine, Order::Alternating), (affine, Order::Joined)];
    for (format, order) in orders.into_iter().chain([(other, split)]) {
        for style in [Style::Swiglu, Style::GptOss, Style::Gelu, Style::Bounded] {
            for rows in [1, 3, 26] {
                held(suite, Shape { format, order }, style, rows);
            }
        }
    }
    for format in [affine, other] {
        for rows in [1, 3, 26] {
            held(suite, Shape { format, order: Order::Up }, Style::Relu2, rows);
        }
    }
}

/// What stands between the products of experts, and how they are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    Swiglu,
    /// Clamped, with biases.
    GptOss,
    /// GELU, and a factor for each expert.
    Gelu,
    /// Bounded.
    Bounded,
    /// Without a gate.
    Relu2,
}

impl Style {
    fn function(self, b: &mut dyn Backend, n_experts: usize, size: ExpertSize) -> ExpertFunction {
        let ExpertSize { hidden, intermediate } = size;
        match self {
            Style::Swiglu => ExpertFunction::SWIGLU,
            Style::GptOss => ExpertFunction::Gated {
                // A limit that bites.
                activation: GatedActivation::ClampedSwiglu { alpha: 1.702, limit: 0.5 },
                biases: Some(ExpertBiases {
                    gate: vector(b, n_experts * intermediate, 80),
                    up: vector(b, n_experts * intermediate, 81),
                    down: vector(b, n_experts * hidden, 82),
                }),
            },
            Style::Gelu => ExpertFunction::gated(GatedActivation::GeluTanh),
            Style::Bounded => ExpertFunction::gated(GatedActivation::BoundedSwiglu { limit: 0.5 }),
            Style::Relu2 => ExpertFunction::Plain(PlainActivation::Relu2),
        }
    }

    fn scoring(self, b: &mut dyn Backend, n_experts: usize) -> Scoring {
        let softmax = |per_expert| Scoring::Softmax {
            per_expert,
            groups: None,
            renormalise: true,
            scale: 1.5,
        };
        match self {
            Style::Swiglu | Style::Bounded | Style::Relu2 => softmax(None),
            Style::GptOss => Scoring::SoftmaxOfChosen,
            Style::Gelu => softmax(Some(PerExpert::Factor(vector(b, n_experts, 79)))),
        }
    }
}

fn held(suite: &Suite<'_>, shape: Shape, style: Style, rows: usize) {
    const N_EXPERTS: usize = 9;
    let name = format!("held experts {shape:?} {style:?}, {rows} rows");
    suite.case(&name, &|b| {
        let size = ExpertSize::of(shape.format);
        let ExpertSize { hidden, .. } = size;
        let function = style.function(b, N_EXPERTS, size);
        let scoring = style.scoring(b, N_EXPERTS);
        let experts: Vec<_> = (0..).take(N_EXPERTS).map(|id| expert(shape, size, id)).collect();
        let (inputs, layer) = (ActivationPrecision::F32, LayerIdx(0));
        let shared = shared_expert(b, style, shape.format, size, rows, inputs);
        let request = ResidencyRequest {
            bytes: 1 << 20,
            record_bytes: 1 << 16,
            top_k: 4,
            stays_in_host: false,
        };
        let is_resident = b.residency_mut().is_some_and(|residency| {
            residency.register_shared(layer, shared.mlp.weights());
            residency.plan(request)
                && experts.iter().all(|expert| residency.load(expert, N_EXPERTS))
        });
        let logits = filled(b, rows, N_EXPERTS, 83);
        let x = filled(b, rows, hidden, 84);
        let acc = filled(b, rows, hidden, 85);
        let top_k = 4;
        let slots = filled(b, rows * top_k, hidden, 88).buf;
        let route = Route { logits, top_k, scoring };
        if let Some(residency) = b.residency_mut().filter(|_| is_resident) {
            assert!(
                residency.is_layer_resident(layer, rows),
                "all experts of the layer are loaded"
            );
            let shared = Some(shared);
            let op = MoeOnDevice { layer, route, x, inputs, function, slots, acc, shared };
            residency.moe_on_device(rows, op);
        } else {
            let Routing { experts: chosen, weights } =
                b.route(rows, route).expect("the device works");
            let call = |(slot, id): (usize, &ExpertId)| ExpertCall {
                expert: Arc::clone(&experts[usize::from(id.0)]),
                rows: vec![ExpertRow { row: (slot / top_k) as u32, slot: slot as u32 }],
            };
            let calls: Vec<ExpertCall> = chosen.iter().enumerate().map(call).collect();
            b.experts(Experts { out: slots, x, rows, inputs, function, calls: &calls });
            shared.mlp.run_parts(b, rows, x, shared.shared.out);
            let shared = Some(shared.shared);
            b.combine(rows, Combine { acc, slots, top_k, weights: &weights, shared });
        }
        read(b, acc.buf, rows)
    });
}

fn shared_expert(
    b: &mut dyn Backend,
    style: Style,
    format: MatrixFormat,
    size: ExpertSize,
    rows: usize,
    inputs: ActivationPrecision,
) -> SharedExpert {
    let ExpertSize { hidden, intermediate } = size;
    let [gate, up, activated] = [89, 90, 91].map(|seed| filled(b, rows, intermediate, seed));
    let shared = Shared { out: filled(b, rows, hidden, 86), gate: Some(filled(b, rows, 1, 87)) };
    let mut matrix = |rows, cols, seed| load(b, MatrixSpec { format, rows, cols }, inputs, seed);
    let [gate_proj, up_proj] = [92, 93].map(|seed| matrix(intermediate, hidden, seed));
    let down_proj = matrix(hidden, intermediate, 94);
    let gated =
        |activation| Mlp::Gated { gate_proj, up_proj, down_proj, activation, gate, up, activated };
    let mlp = match style {
        Style::Swiglu | Style::GptOss => gated(GatedActivation::Swiglu),
        Style::Gelu => gated(GatedActivation::GeluTanh),
        Style::Bounded => gated(GatedActivation::BoundedSwiglu { limit: 0.5 }),
        Style::Relu2 => Mlp::Plain { up_proj, down_proj, activation: PlainActivation::Relu2, up },
    };
    SharedExpert { mlp, shared }
}

/// Experts that come and go while kernels that need them may still wait.
pub(super) fn check_turns(suite: &Suite<'_>) {
    const N_EXPERTS: u16 = 7;
    const OPS: u32 = 40;
    let shape = Shape { format: formats()[0], order: Order::Split };
    suite.case("experts in turns", &|b| {
        let size = ExpertSize::of(shape.format);
        let ExpertSize { hidden, .. } = size;
        let experts: Vec<_> = (0..N_EXPERTS).map(|id| expert(shape, size, id)).collect();
        let x = filled(b, 2, hidden, 66);
        let out = filled(b, 3 * OPS as usize, hidden, 67).buf;
        let mut numbers = Numbers::new(68);
        for nth in 0..OPS {
            let first = numbers.bits() % u64::from(N_EXPERTS);
            let n = 1 + numbers.bits() % 3;
            let call = |i: u64| ExpertCall {
                expert: Arc::clone(&experts[((first + 2 * i) % u64::from(N_EXPERTS)) as usize]),
                rows: vec![ExpertRow { row: nth % 2, slot: 3 * nth + i as u32 }],
            };
            let calls: Vec<ExpertCall> = (0..n).map(call).collect();
            let (inputs, function) = (ActivationPrecision::F32, ExpertFunction::SWIGLU);
            let op = Experts { out, x, rows: 2, inputs, function, calls: &[] };
            let layer = LayerIdx(0);
            let residency = b.residency_mut().filter(|_| nth % 3 > 0);
            let Some(residency) = residency else {
                b.experts(Experts { calls: &calls, ..op });
                continue;
            };
            // Experts of the last op are resident; the others are uploaded.
            let (resident, absent): (Vec<ExpertCall>, Vec<ExpertCall>) = calls
                .into_iter()
                .partition(|call| residency.is_resident(layer, call.expert.key.expert));
            let resident: Vec<ResidentCall> = resident
                .into_iter()
                .map(|call| ResidentCall { expert: call.expert.key.expert, rows: call.rows })
                .collect();
            // The op uses few of these.
            residency.begin_upload(layer, &resident, &mut experts.iter());
            if !resident.is_empty() {
                residency.resident_experts(ResidentExperts { layer, op, calls: &resident });
                if let Some(recording) = b.recording() {
                    recording.flush();
                }
            }
            b.experts(Experts { calls: &absent, ..op });
        }
        read(b, out, 3 * OPS as usize)
    });
}

/// How an expert is stored.
#[derive(Clone, Copy, Debug)]
struct Shape {
    format: MatrixFormat,
    order: Order,
}

/// How its gate and up lie.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// There is no gate.
    Up,
    Split,
    Alternating,
    Joined,
}

/// Columns of an expert's input, and between its products.
#[derive(Clone, Copy, Debug)]
struct ExpertSize {
    hidden: usize,
    intermediate: usize,
}

impl ExpertSize {
    /// Of whole groups, and odd where a format has none.
    fn of(format: MatrixFormat) -> ExpertSize {
        match group_size(format) {
            Some(n) => ExpertSize { hidden: 2 * n, intermediate: 3 * n },
            None => ExpertSize { hidden: 37, intermediate: 21 },
        }
    }
}

fn route(
    suite: &Suite<'_>,
    n_experts: usize,
    top_k: usize,
    scoring: &dyn Fn(&mut dyn Backend) -> Scoring,
) {
    suite.case(&format!("route {top_k} of {n_experts}"), &|b| {
        let logits = filled(b, 6, n_experts, 60);
        let scoring = scoring(b);
        let routing = b.route(6, Route { logits, top_k, scoring }).expect("the device works");
        let ids = routing.experts.iter().map(|id| f32::from(id.0));
        ids.chain(routing.weights.iter().copied()).collect()
    });
}

fn softmax_route(
    suite: &Suite<'_>,
    n_experts: usize,
    top_k: usize,
    groups: Option<ExpertGroups>,
    renormalise: bool,
) {
    for kind in [None, Some(PerExpert::Bias as fn(_) -> _), Some(PerExpert::Factor)] {
        route(suite, n_experts, top_k, &|b| {
            let per_expert = kind.map(|kind| kind(vector(b, n_experts, 58)));
            Scoring::Softmax { per_expert, groups, renormalise, scale: 1.5 }
        });
    }
}

fn sigmoid_route(
    suite: &Suite<'_>,
    n_experts: usize,
    top_k: usize,
    groups: Option<ExpertGroups>,
    renormalise: bool,
) {
    for has_bias in [false, true] {
        route(suite, n_experts, top_k, &|b| {
            let bias = Numbers::new(59).floats(n_experts);
            let bias = has_bias.then(|| b.load_vector(&bias));
            Scoring::Sigmoid { bias, groups, renormalise, scale: 2.5 }
        });
    }
}

fn root_route(suite: &Suite<'_>, n_experts: usize, top_k: usize, renormalise: bool) {
    for has_bias in [false, true] {
        route(suite, n_experts, top_k, &|b| {
            let bias = Numbers::new(59).floats(n_experts);
            let bias = has_bias.then(|| b.load_vector(&bias));
            Scoring::SqrtSoftplus { bias, renormalise, scale: 1.5 }
        });
    }
}

fn combine(suite: &Suite<'_>, rows: usize, width: usize, top_k: usize) {
    for has_gate in [None, Some(false), Some(true)] {
        suite.case(&format!("combine {rows}x{width} top {top_k} {has_gate:?}"), &|b| {
            let acc = filled(b, rows, width, 61);
            let slots = filled(b, rows * top_k, width, 62).buf;
            let mut weights = Numbers::new(63).floats(rows * top_k);
            weights[0] = 0.0;
            let shared = has_gate.map(|has_gate| Shared {
                out: filled(b, rows, width, 64),
                gate: has_gate.then(|| filled(b, rows, 1, 65)),
            });
            b.combine(rows, Combine { acc, slots, top_k, weights: &weights, shared });
            read(b, acc.buf, rows)
        });
    }
}

/// An expert whose parts begin at odd offsets.
fn expert(shape: Shape, size: ExpertSize, id: u16) -> Arc<Expert> {
    let ExpertSize { hidden, intermediate } = size;
    let format = shape.format;
    let mut bytes = vec![0; 3];
    let mut place = |part: Vec<u8>| {
        let span = PartSpan { extent: 0, offset: bytes.len() - 3, len: part.len() };
        bytes.extend(part);
        span
    };
    let mut layout = |rows, cols, seed| {
        let MatrixParts { weight, scales, biases } =
            matrix_bytes(MatrixSpec { format, rows, cols }, seed);
        let [weight, scales, biases] = [weight, scales, biases].map(&mut place);
        MatrixLayout { rows, cols, format, weight, scales, biases }
    };
    let seed = 70 + 3 * u64::from(id);
    let gate_up = match shape.order {
        Order::Up => GateUp::Up(layout(intermediate, hidden, seed)),
        Order::Split => {
            let gate = layout(intermediate, hidden, seed);
            GateUp::Split { gate, up: layout(intermediate, hidden, seed + 1) }
        }
        Order::Alternating => GateUp::Alternating(layout(2 * intermediate, hidden, seed)),
        Order::Joined => GateUp::Joined(layout(2 * intermediate, hidden, seed)),
    };
    let down = layout(hidden, intermediate, seed + 2);
    let mut buf = HostBuf::zeroed(bytes.len());
    buf[..bytes.len()].copy_from_slice(&bytes);
    Arc::new(Expert {
        key: ExpertKey { layer: LayerIdx(0), expert: ExpertId(id) },
        layout: Arc::new(ExpertLayout { extents: vec![bytes.len() - 3], gate_up, down }),
        memory: ExpertMemory::Owned { buf, starts: vec![3] },
    })
}

fn vector(backend: &mut dyn Backend, n: usize, seed: u64) -> crate::Vector {
    backend.load_vector(&Numbers::new(seed).floats(n))
}

fn experts(suite: &Suite<'_>, shape: Shape, inputs: ActivationPrecision, style: Style) {
    // With one limb values are seldom near the middle of a step, so that none may go the
    // other way: a step would hide whatever else is wrong.
    let step = if inputs == ActivationPrecision::Int16 { 1.0 / (127.0 * 256.0) } else { 0.0 };
    let name = format!("experts {shape:?} {inputs:?} {style:?}");
    let case = Products { format: shape.format, inputs, is_many: false, step };
    suite.case_of_products(&name, case, &|b, inputs| {
        let size = ExpertSize::of(shape.format);
        let ExpertSize { hidden, .. } = size;
        let top_k = 2;
        let x = filled(b, 4, hidden, 66);
        let out = filled(b, 4 * top_k, hidden, 67).buf;
        let row = |row, slot| ExpertRow { row, slot };
        let call = |id, rows: Vec<ExpertRow>| ExpertCall { expert: expert(shape, size, id), rows };
        let first = [call(0, vec![row(0, 1), row(2, 4), row(3, 6)])];
        let rest = [call(1, vec![row(1, 2)]), call(2, vec![row(0, 0), row(1, 3), row(2, 5)])];
        let function = style.function(b, 3, size);
        let op = Experts { out, x, rows: 4, inputs, function, calls: &first };
        b.experts(op);
        b.experts(Experts { calls: &rest, ..op });
        read(b, out, 4 * top_k)
    });
}
