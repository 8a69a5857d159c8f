//! Experts that rows chose come to a layer of which not all are on the device.

use crate::commands::grid::Grid;
use crate::device::buffer::Mem;
use crate::experts::gather::GATHER_THREADS;
use crate::experts::resident_layer::ResidentLayer;
use crate::kernels::moe::{ExpertAdmit, ExpertGatherAdmitted};
use crate::state::backend::Wgpu;
use crate::words::word;

/// Choices of each expert, in the mean, in which the count of one halves; as the
/// store's policy has it.
const HALF_LIFE: f32 = 4.0;

/// Slabs that a kernel chooses from.
const SLABS: usize = 4;

/// Has the experts come that are in a list of this many.
pub(crate) fn admit(b: &mut Wgpu, layer: &ResidentLayer, (ids, n): (&Mem, usize)) {
    let Some(tables) = layer.cache.as_ref().and_then(|it| it.tables.as_ref()) else { return };
    let table = layer.table.as_ref().expect("all experts of the layer are kept");
    let tally = b.encoder.tally();
    let admitted = b.scratch.admitted.words(&mut b.encoder, 1 + 2 * n);
    let n_slots = word(tables.slots.len());
    let params = [
        word(n),
        word(layer.slots.len()),
        n_slots,
        word(tables.bytes / 16),
        (n as f32 / (HALF_LIFE * layer.slots.len() as f32)).to_bits(),
    ];
    let per_lane = n_slots.div_ceil(b.encoder.context().lanes);
    b.encoder.dispatch(
        ExpertAdmit { per_lane },
        &params,
        &[ids, &tables.places, &tables.state, table, &admitted, &tally],
        Grid::Linear(1),
    );
    for (nth, buffer) in (0..).zip(&layer.buffers) {
        for (first, slabs) in (0..).step_by(SLABS).zip(tables.slabs.chunks(SLABS)) {
            let mut params = vec![word(tables.parts.len()), nth, first, 0];
            params.extend(tables.parts.iter().flat_map(|[to, end]| [*to, *end, 0, 0]));
            let mut buffers = vec![&tables.sources, buffer];
            // All of them are bound, used or not.
            buffers.extend(slabs.iter().cycle().take(SLABS));
            buffers.extend([&admitted, &tables.places]);
            b.encoder.dispatch(
                ExpertGatherAdmitted {},
                &params,
                &buffers,
                Grid::Plane((tables.bytes / 16).div_ceil(GATHER_THREADS), n),
            );
        }
    }
    b.slots.mark_stale();
}
