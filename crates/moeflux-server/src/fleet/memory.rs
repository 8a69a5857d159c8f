//! Which models are loaded at a time: those that leave each other all that they want.

use moeflux_engine::Plan;

/// Bytes of a model that has all its experts in memory.
fn whole_bytes(plan: &Plan) -> u64 {
    plan.fixed_bytes().saturating_add(plan.expert_bytes)
}

/// Whether a model may be loaded while others stay: where all of them have all their experts in
/// memory of `usable` bytes. A model that streams experts takes what memory there is for its cache,
/// and one with a device of its own takes that of the device.
pub(super) fn may_join(new: &Plan, others: &[&Plan], usable: u64) -> bool {
    let all = || others.iter().copied().chain([new]);
    let have_no_device = all().all(|plan| plan.device_expert_bytes.is_none());
    let bytes = all().fold(0, |sum: u64, plan| sum.saturating_add(whole_bytes(plan)));
    others.is_empty() || (have_no_device && bytes <= usable)
}
