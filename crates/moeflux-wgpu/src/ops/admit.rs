//! Experts that rows chose come to a layer of which not all are on the device.

use crate::buffer::Mem;
use crate::fetching::FETCHING_THREADS;
use crate::grid::Grid;
use crate::kept_layer::KeptLayer;
use crate::shader::{Shader, Variant};
use crate::state::Wgpu;
use crate::words::word;

/// Choices of each expert, in the mean, in which the count of one halves; as the
/// store's policy has it.
const HALF_LIFE: f32 = 4.0;

/// Slabs that a kernel chooses from.
const SLABS: usize = 4;

/// Has the experts come that lie in a list of so many.
pub(super) fn admit(b: &mut Wgpu, layer: &KeptLayer, (ids, n): (&Mem, usize)) {
    let Some(there) = layer.cache.as_ref().and_then(|it| it.on_device.as_ref()) else { return };
    let table = layer.table.as_ref().expect("all experts of the layer are kept");
    let tally = b.encoder.tally();
    let coming = b.scratch.coming.words(&mut b.encoder, 1 + 2 * n);
    let n_rooms = word(there.rooms.len());
    let params = [
        word(n),
        word(layer.slots.len()),
        n_rooms,
        word(there.bytes / 16),
        (n as f32 / (HALF_LIFE * layer.slots.len() as f32)).to_bits(),
    ];
    let per_lane = n_rooms.div_ceil(b.encoder.context().lanes);
    b.encoder.dispatch(
        Variant::new(Shader::Admit, &[per_lane]),
        &params,
        &[ids, &there.places, &there.state, table, &coming, &tally],
        Grid::Linear(1),
    );
    for (nth, buffer) in (0..).zip(&layer.buffers) {
        for (first, slabs) in (0..).step_by(SLABS).zip(there.slabs.chunks(SLABS)) {
            let mut params = vec![word(there.parts.len()), nth, first, 0];
            params.extend(there.parts.iter().flat_map(|[to, end]| [*to, *end, 0, 0]));
            let mut buffers = vec![&there.sources, buffer];
            // All of them are bound, used or not.
            buffers.extend(slabs.iter().cycle().take(SLABS));
            buffers.extend([&coming, &there.places]);
            b.encoder.dispatch(
                Variant::new(Shader::FetchChosen, &[]),
                &params,
                &buffers,
                Grid::Plane((there.bytes / 16).div_ceil(FETCHING_THREADS), n),
            );
        }
    }
    b.slots.note_admitted();
}
