//! Experts that rows chose come to a layer of which not all are on the device.

use moeflux_residency::decay;

use crate::commands::gather::GATHER_THREADS;
use crate::commands::grid::Grid;
use crate::device::buffer::Mem;
use crate::kernels::moe::{ExpertAdmit, ExpertGatherAdmitted};
use crate::memory::experts::tables::{LayerTables, ResidentLayer};
use crate::state::gpu::Wgpu;
use crate::words::word;

/// Slabs that a kernel chooses from.
const SLABS: usize = 4;

/// Brings the experts in a list of `n` choices to the device, where any of them may be missing.
pub(crate) fn admit(b: &mut Wgpu, layer: &ResidentLayer, ids: &Mem, n: usize) {
    let Some(LayerTables { places, admission: Some(tables) }) = layer.tables() else { return };
    let tally = b.encoder.readback.tally(&mut b.encoder.buffers);
    let admitted = b.scratch.admitted.words(&mut b.encoder, 1 + 2 * n);
    let n_slots = word(tables.n_slots);
    let params = [
        word(n),
        word(layer.n_experts()),
        n_slots,
        word(tables.bytes / 16),
        decay(n, layer.n_experts()).to_bits(),
    ];
    let per_lane = n_slots.div_ceil(b.encoder.context().lanes);
    b.encoder.dispatch(
        ExpertAdmit { per_lane },
        &params,
        &[ids, &tables.slots, &tables.state, places, &admitted, &tally],
        Grid::Linear(1),
    );
    for (nth, buffer) in (0..).zip(layer.buffers()) {
        for (first, slabs) in (0..).step_by(SLABS).zip(tables.slabs.chunks(SLABS)) {
            let mut params = vec![word(tables.parts.len()), nth, first, 0];
            params.extend(tables.parts.iter().flat_map(|[to, end]| [*to, *end, 0, 0]));
            let mut buffers = vec![&tables.sources, buffer];
            // All of them are bound, used or not.
            buffers.extend(slabs.iter().cycle().take(SLABS));
            buffers.extend([&admitted, &tables.slots]);
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
