//! Routing: the top-k experts of each row and their weights.

use moeflux_backend::{DeviceError, PerExpert, Route, Routing, Scoring};
use moeflux_core::ExpertId;

use crate::commands::grid::Grid;
use crate::commands::read::read;
use crate::device::buffer::Mem;
use crate::kernels::moe as kernels;
use crate::state::gpu::Wgpu;
use crate::words::word;

/// Most experts of a layer that `moe/route.wgsl` chooses from.
pub const MAX_EXPERTS: usize = 1024;

/// Most groups of experts.
const MAX_GROUPS: usize = 128;

pub(crate) fn route(b: &mut Wgpu, rows: usize, op: Route) -> Result<Routing, DeviceError> {
    let Route { logits, top_k, .. } = op;
    b.encoder.begin();
    let chosen = choose(b, rows, op);
    let len = 8 * rows * top_k;
    let mut parts = vec![chosen.range(0, len as u64)];
    // The host is about to ask which experts are resident.
    parts.extend(b.slots.stale_layers().filter_map(|layer| {
        let admission = layer.tables()?.admission.as_ref()?;
        Some(admission.slot_numbers(layer.n_experts()))
    }));
    let bytes = read(&mut b.encoder, &parts)?;
    let (bytes, slot_numbers) = bytes.split_at(len);
    if !slot_numbers.is_empty() {
        b.slots.refresh(&crate::words::words(slot_numbers));
    }
    let (experts, weights) = bytes.split_at(4 * rows * top_k);
    let id =
        |number: u32| ExpertId(u16::try_from(number.min(word(logits.len) - 1)).unwrap_or(u16::MAX));
    let experts = crate::words::words(experts).into_iter().map(id).collect();
    Ok(Routing { experts, weights: crate::words::floats(weights) })
}

/// Chooses experts: `(rows, top_k)` of them, then `(rows, top_k)` weights. The
/// op has begun before.
pub(crate) fn choose(b: &mut Wgpu, rows: usize, op: Route) -> Mem {
    let Route { logits, top_k, scoring } = op;
    assert!(logits.len <= MAX_EXPERTS && top_k <= logits.len, "{top_k} of {}", logits.len);
    let buf = b.buf(logits.buf).clone();
    let chosen = b.scratch.routing.words(&mut b.encoder, 2 * rows * top_k);
    let (kind, scale, renormalises, per_expert, groups) = match scoring {
        Scoring::Softmax { per_expert, groups, renormalise, scale } => {
            (0, scale, renormalise, per_expert, groups)
        }
        Scoring::SoftmaxOfChosen => (1, 1.0, false, None, None),
        Scoring::Sigmoid { bias, groups, renormalise, scale } => {
            (2, scale, renormalise, bias.map(PerExpert::Bias), groups)
        }
        Scoring::SqrtSoftplus { bias, renormalise, scale } => {
            (3, scale, renormalise, bias.map(PerExpert::Bias), None)
        }
    };
    if let Some(groups) = groups {
        assert!(groups.n <= MAX_GROUPS && logits.len.is_multiple_of(groups.n), "groups");
        let eligible = groups.kept * (logits.len / groups.n);
        assert!(top_k <= eligible, "enough experts are eligible");
    }
    let params = [
        word(logits.len),
        word(top_k),
        word(logits.start),
        word(buf.width),
        scale.to_bits(),
        u32::from(renormalises),
        match per_expert {
            None => 0,
            Some(PerExpert::Bias(_)) => 1,
            Some(PerExpert::Factor(_)) => 2,
        },
        word(groups.map_or(0, |groups| groups.n)),
        word(groups.map_or(0, |groups| groups.kept)),
        word(rows),
    ];
    let per_expert = per_expert.map_or_else(|| buf.mem.clone(), |of| b.vector(of.vector()).clone());
    let per_lane = word(logits.len).div_ceil(b.encoder.context().lanes);
    b.encoder.dispatch(
        kernels::Route { scoring: kind, per_lane, is_grouped: groups.is_some() },
        &params,
        &[&buf.mem, &per_expert, &chosen],
        Grid::Linear(rows),
    );
    chosen
}
