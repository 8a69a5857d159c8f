//! Mixtures of experts. `route` chooses experts. Those that the host chose run in groups
//! (`experts`, `expert_group`), from slots or `in_place` where the device shares memory. Where the
//! device chose, `admit` brings missing ones and `resident` runs few rows, `grouped` many.
//! `combine` adds up the outputs.

pub(crate) mod admit;
mod combine;
mod expert_group;
mod experts;
mod grouped;
pub(crate) mod in_place;
mod resident;
pub(crate) mod route;

pub(crate) use combine::combine;
pub(crate) use experts::{begin_upload, experts, resident_experts};
pub(crate) use resident::moe_on_device;
pub(crate) use route::route;
