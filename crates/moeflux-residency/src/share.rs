//! Which share of all experts fits on a device.

use moeflux_backend::ResidencyRequest;
use moeflux_core::ExpertLayout;

use crate::packing::Packing;

/// Slots that are left for experts of steps with many rows, which the host uploads: at most a
/// quarter of the memory.
const POOL_EXPERTS: u64 = 64;

/// The share of every layer's experts that is resident.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResidentShare {
    /// Bytes for the experts of all layers.
    bytes: u64,
    /// Bytes of the records of all experts.
    of_bytes: u64,
    pub(crate) top_k: usize,
}

impl ResidentShare {
    /// The share that fits into `room` bytes of the device.
    pub(crate) fn new(request: ResidencyRequest, room: u64) -> ResidentShare {
        let pool = POOL_EXPERTS.saturating_mul(request.record_bytes).min(room / 4);
        ResidentShare { bytes: room - pool, of_bytes: request.bytes, top_k: request.top_k }
    }

    /// The number of slots of a layer of `n_experts`.
    pub(crate) fn n_slots(
        &self,
        n_experts: usize,
        layout: &ExpertLayout,
        packing: &Packing,
    ) -> usize {
        let records = (n_experts * layout.record_bytes()) as u128;
        let of_layer = u128::from(self.bytes) * records / u128::from(self.of_bytes.max(1));
        let n_slots = of_layer / packing.bytes().max(1) as u128;
        usize::try_from(n_slots).unwrap_or(usize::MAX).min(n_experts)
    }
}
