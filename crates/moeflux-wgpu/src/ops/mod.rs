//! The ops, one file for those that share kernels.

mod activation;
mod admit;
pub(crate) mod attention;
mod elementwise;
mod expert_groups;
mod grouped;
mod heads;
mod held;
mod in_place;
mod jobs;
pub(crate) mod layouts;
mod logits;
mod mixers;
mod moe;
mod products;
mod repeated;
mod rounding;
mod shares;
mod source;
mod sums;

pub(crate) use attention::{attention, gated_attention, select_positions};
pub(crate) use elementwise::{
    add, add_bias, copy, gated_rms_norm, layer_norm, rms_norm, rope, sigmoid_gate, swiglu,
};
pub(crate) use heads::head_product;
pub(crate) use held::moe_on_device;
pub use in_place::reads_in_place;
pub(crate) use logits::{leaders, logits};
pub(crate) use mixers::{causal_conv, delta_net, delta_rule};
pub use moe::MAX_EXPERTS;
pub(crate) use moe::{begin_upload, combine, experts, resident_experts, route};
pub(crate) use products::{embed, project};
pub(crate) use repeated::{
    Repeated, current_layout, effective_layout, plain_layout, project_repeated,
};
