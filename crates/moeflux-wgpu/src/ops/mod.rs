//! The ops, one file for those that share kernels; `matmul` has the products with weights,
//! `attention` and `moe` the ops of those layers.

pub(crate) mod attention;
mod chain;
pub(crate) mod conv;
pub(crate) mod delta_net;
pub(crate) mod delta_rule;
pub(crate) mod elementwise;
pub(crate) mod embed;
pub(crate) mod logits;
pub(crate) mod matmul;
pub(crate) mod moe;
pub(crate) mod norm;
mod operand;
pub(crate) mod rope;
mod spans;
pub(crate) mod state_space;
pub(crate) mod streams;

pub(crate) use attention::{append, attention, gated_attention, pool_entries, select_positions};
pub(crate) use conv::causal_conv;
pub(crate) use delta_net::delta_net;
pub(crate) use delta_rule::delta_rule;
pub(crate) use elementwise::{
    activate, activate_plain, add, add_bias, copy, join_rows, scale, scaled_silu, sigmoid_gate,
};
pub(crate) use embed::embed;
pub(crate) use logits::{logits, top_logits};
pub(crate) use matmul::{head_product, project};
pub(crate) use moe::{begin_upload, combine, experts, moe_on_device, resident_experts, route};
pub(crate) use norm::{gated_rms_norm, layer_norm, rms_norm};
pub(crate) use rope::rope;
pub(crate) use state_space::state_space;
pub(crate) use streams::{
    blend_streams, join_streams, mix_streams, similarity_gate, stream_shares, weigh_streams,
};
