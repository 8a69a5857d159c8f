//! What the GPU does for the residency of experts.

use std::sync::Arc;

use moeflux_core::quant::MatrixFormat;
use moeflux_core::{Expert, ExpertLayout};
use moeflux_residency::{LayerMemory, Packing, Slot, SlotMemory};

use crate::commands::encoder::Encoder;
use crate::commands::upload::upload;
use crate::device::allocated_ahead::AllocatedAhead;
use crate::device::buffer::Mem;
use crate::device::imports::host_access::HostAccess;
use crate::layouts::format::{Decoder, place};
use crate::layouts::packing::pack;
use crate::memory::experts::tables::{LayerTables, ResidentLayer};
use crate::memory::weights::matrix::Matrix;

impl SlotMemory for Encoder {
    type Buffer = Mem;

    fn max_buffer_bytes(&self) -> u64 {
        self.context().max_binding_bytes()
    }

    fn try_allocate(&self, bytes: u64) -> Option<Mem> {
        // What was allocated ahead has room for a shared expert, which some layers have apart.
        let ahead = self.ahead.take(bytes, bytes / 4);
        ahead.or_else(|| self.context().try_storage(bytes, "experts").map(Mem::new))
    }

    fn allocate_or_report(&mut self, bytes: u64) -> Option<Mem> {
        let mem = self.buffers.storage(bytes, "experts");
        (!self.buffers.is_stand_in(&mem)).then_some(mem)
    }

    fn free_unused(&self, buffer: Mem) {
        buffer.buffer.destroy();
    }

    fn free_after_use(&mut self, buffer: &Mem) {
        self.forget(buffer);
    }

    fn pack(&self, layout: &Arc<ExpertLayout>) -> Packing {
        pack(layout)
    }

    fn upload(&mut self, expert: &Arc<Expert>, packing: &Arc<Packing>, slot: &Slot<Mem>) -> bool {
        upload(self, expert, packing, slot)
    }

    fn retain(&mut self, expert: &Arc<Expert>) {
        self.uploads.retain(expert);
    }
}

impl LayerMemory for Encoder {
    /// Gate, where there is one, up and down.
    type SharedExpert = Vec<Matrix>;
    type Tables = LayerTables;

    fn fetches_missing(&self) -> bool {
        self.uploads.host_access == HostAccess::Fetched
    }

    fn is_stored_alike(&self, shared: &Vec<Matrix>, packing: &Packing) -> bool {
        is_stored_alike(shared, packing)
    }

    fn copy_shared(&mut self, shared: &Vec<Matrix>, packing: &Packing, slot: &Slot<Mem>) {
        for (matrix, part) in shared.iter().zip(packing.parts()) {
            let piece = &matrix.pieces[0];
            let from = piece.mem.at(4 * u64::from(piece.place.elements));
            let to = slot.buffer.at((slot.at + part.bytes.start) as u64);
            self.copy(from, to, part.bytes.len() as u64);
        }
    }

    fn build_tables(&mut self, layer: &ResidentLayer) -> Option<LayerTables> {
        LayerTables::new(self, layer)
    }

    fn free_tables(&mut self, tables: &LayerTables) {
        tables.buffers().for_each(|buffer| self.forget(buffer));
    }
}

/// Begins to allocate what reserving layers, by layout and number of experts, will ask for, in this order.
pub(crate) fn reserve_ahead(
    encoder: &mut Encoder,
    layers: &mut dyn Iterator<Item = (&Arc<ExpertLayout>, usize)>,
) {
    let most = encoder.context().max_binding_bytes();
    let sizes = layers.flat_map(|(layout, n_experts)| {
        let slot = pack(layout).bytes() as u64;
        let (per_buffer, n_slots) = ((most / slot).max(1), n_experts as u64 + 1);
        let firsts = (0..n_slots).step_by(usize::try_from(per_buffer).unwrap_or(usize::MAX));
        firsts.map(move |first| per_buffer.min(n_slots - first) * slot)
    });
    let sizes = sizes.collect();
    encoder.ahead = AllocatedAhead::begin(encoder.context(), sizes);
}

/// Whether resident matrices are stored as those of an expert.
fn is_stored_alike(matrices: &[Matrix], packing: &Packing) -> bool {
    let mut pairs = matrices.iter().zip(packing.matrices());
    packing.parts().len() == matrices.len()
        && pairs.all(|(matrix, (layout, part))| {
            let [piece] = &matrix.pieces[..] else { return false };
            (matrix.rows, matrix.cols, matrix.decoder)
                == (layout.rows, layout.cols, Decoder::new(layout.format))
                && piece.place == place(4 * piece.place.elements as usize, part.scales_at)
                && piece.phase == 0
                && !matches!(layout.format, MatrixFormat::Blocks(blocks) if blocks.phase > 0)
        })
}
