//! Experts in the memory of a device.

use std::sync::Arc;

use moeflux_core::{Expert, ExpertId, ExpertKey, ExpertLayout, ExpertParts, LayerIdx};

use crate::{
    ActivationPrecision, Buf, Cols, DeviceCounters, ExpertFunction, ExpertRow, Experts, Route,
    SharedExpert, Weight,
};

/// Copies of experts in the memory of a device: a cache of those that [`Ops::experts`]
/// uploads, and those that were loaded until further notice.
///
/// [`Ops::experts`]: crate::Ops::experts
pub trait ExpertResidency {
    /// Plans to [load](ExpertResidency::load) all experts. Returns true where they fit into
    /// the device in addition to its present contents, or where enough of them do and the
    /// device can fetch the others by itself. Returns false on devices that read experts
    /// from the host's memory, as a copy gains nothing there.
    fn plan(&mut self, request: ResidencyRequest) -> bool;
    /// Registers the projections of a layer's shared expert, before
    /// experts of the layer are loaded: the device may store a copy next to them, so that
    /// one kernel runs both.
    fn register_shared(&mut self, layer: LayerIdx, projections: ExpertParts<Weight>);
    /// Begins to take memory for layers, by layout and number of experts, which are going to be
    /// [reserved](ExpertResidency::reserve) in this order, where the device knows that `others` bytes are
    /// left then.
    fn reserve_ahead(
        &mut self,
        layers: &mut dyn Iterator<Item = (&Arc<ExpertLayout>, usize)>,
        others: u64,
    );
    /// Takes memory for all experts of a layer, before any is [loaded](ExpertResidency::load): those
    /// that [`Ops::experts`](crate::Ops::experts) uploads stay there from then on, as those that are
    /// loaded do. Returns false where memory is short; the caller should then unload all.
    fn reserve(&mut self, layer: LayerIdx, layout: &Arc<ExpertLayout>, n_experts: usize) -> bool;
    /// Copies an expert of a layer of `n_experts` to the device, where it stays until
    /// [`unload_all`](ExpertResidency::unload_all). Returns false where memory is short; the
    /// caller should then unload all.
    ///
    /// The device may reference the expert until it
    /// [releases](ExpertResidency::release_experts) it or, where experts
    /// [stay in the host's memory](ResidencyRequest::stays_in_host), until all are unloaded.
    fn load(&mut self, expert: &Arc<Expert>, n_experts: usize) -> bool;
    /// Frees all experts that were [loaded](ExpertResidency::load).
    fn unload_all(&mut self);
    /// Whether the device has a copy of an expert, which stays at least until the next
    /// [`Ops::experts`](crate::Ops::experts) or [`load`](ExpertResidency::load).
    fn is_resident(&self, layer: LayerIdx, expert: ExpertId) -> bool;
    /// Whether all experts of a layer are loaded and the device can route that many rows by
    /// itself, with [`moe_on_device`](ExpertResidency::moe_on_device).
    fn is_layer_resident(&self, layer: LayerIdx, rows: usize) -> bool;
    /// Begins to upload experts that the next [`Ops::experts`](crate::Ops::experts) will use,
    /// and may reference them until then. The `resident` experts of the same layer are not
    /// evicted for that.
    fn begin_upload(
        &mut self,
        layer: LayerIdx,
        resident: &[ResidentCall],
        experts: &mut dyn Iterator<Item = &Arc<Expert>>,
    );
    /// Runs experts that are [resident](ExpertResidency::is_resident), as
    /// [`Ops::experts`](crate::Ops::experts) runs those from the host.
    fn resident_experts(&mut self, op: ResidentExperts<'_>);
    /// Routes on the device and runs the chosen experts and the shared one, with no
    /// read-back: [`Ops::route`], [`Ops::experts`] and [`Ops::combine`] of a layer that
    /// [is resident](ExpertResidency::is_layer_resident). The contents of `slots` are
    /// unspecified afterwards.
    ///
    /// [`Ops::route`]: crate::Ops::route
    /// [`Ops::experts`]: crate::Ops::experts
    /// [`Ops::combine`]: crate::Ops::combine
    fn moe_on_device(&mut self, rows: usize, op: MoeOnDevice);
    /// Waits until the device references at most `max_held` experts of those that it was
    /// given. A device that reads them from the host's memory references them until then,
    /// or until the next read-back.
    fn release_experts(&mut self, max_held: usize);
    /// Returns the experts that entered or left the device's memory since the last call, in
    /// the order of the changes.
    fn drain_residency_changes(&mut self) -> Vec<ResidencyChange>;
    /// The counters of uploads, hits, kernels and waits.
    fn counters(&self) -> Arc<DeviceCounters>;
}

/// The experts of a model that a device may load.
#[derive(Clone, Copy, Debug)]
pub struct ResidencyRequest {
    /// Bytes of all of them.
    pub bytes: u64,
    /// Bytes of the largest.
    pub record_bytes: u64,
    /// Experts of a row in a layer.
    pub top_k: usize,
    /// Whether the host's memory holds all of them as long as the device does.
    pub stays_in_host: bool,
}

/// An expert entered or left the memory of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResidencyChange {
    /// The expert.
    pub key: ExpertKey,
    /// Whether the device has it after the change.
    pub is_resident: bool,
}

/// A resident expert and the rows that chose it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResidentCall {
    /// The expert.
    pub expert: ExpertId,
    /// The rows, ascending.
    pub rows: Vec<ExpertRow>,
}

/// Arguments of [`ExpertResidency::resident_experts`].
#[derive(Clone, Copy, Debug)]
pub struct ResidentExperts<'a> {
    /// The layer.
    pub layer: LayerIdx,
    /// Buffers and arithmetic; its list of calls is empty.
    pub op: Experts<'a>,
    /// The experts.
    pub calls: &'a [ResidentCall],
}

/// Arguments of [`ExpertResidency::moe_on_device`].
#[derive(Clone, Copy, Debug)]
pub struct MoeOnDevice {
    /// The layer.
    pub layer: LayerIdx,
    /// The router.
    pub route: Route,
    /// The normalised hidden states.
    pub x: Cols,
    /// The precision of the products' activations.
    pub inputs: ActivationPrecision,
    /// What the experts compute.
    pub function: ExpertFunction,
    /// Scratch memory of one row for each chosen expert.
    pub slots: Buf,
    /// The residual stream, to which the outputs are added.
    pub acc: Cols,
    /// The shared expert, where there is one. Only the logit that scales it is already
    /// computed.
    pub shared: Option<SharedExpert>,
}
