//! The ops, one file for those that share kernels.

mod activation;
mod admit;
mod attention;
mod elementwise;
mod grouped;
mod heads;
mod held;
mod in_place;
mod jobs;
mod logits;
mod mixers;
mod moe;
mod products;
mod repeated;
mod rounding;
mod shares;
mod sums;

pub(crate) use admit::ADMITTED_ROWS;
pub(crate) use attention::{MANY_QUERIES, Mask, attention, gated_attention, select_positions};
pub(crate) use elementwise::{
    RopeTable, add, add_bias, copy, gated_rms_norm, layer_norm, rms_norm, rope, sigmoid_gate,
    swiglu,
};
pub(crate) use heads::head_product;
pub(crate) use held::routed_experts;
pub use in_place::reads_in_place;
pub(crate) use logits::{leaders, logits};
pub(crate) use mixers::{causal_conv, delta_net, delta_rule};
pub use moe::MAX_EXPERTS;
pub(crate) use moe::{begin_experts, combine, experts, held_experts, route};
pub(crate) use products::{embed, project};
pub(crate) use repeated::{
    Repeated, current_layout, digits_of, effective_layout, plain_layout, project_repeated,
};
pub(crate) use rounding::{RoundedInputs, Wanted};
pub(crate) use sums::LastSum;

use moeflux_backend::Span;

use crate::encoder::{Encoder, Mem};

/// Threads of a workgroup whose threads have an element each.
const ELEMENTS: usize = 64;

/// A count or place, as kernels take it.
fn word(it: usize) -> u32 {
    u32::try_from(it).expect("kernels count in 32 bits")
}

/// The bytes of a read-back as floats.
pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|it| f32::from_le_bytes(*it)).collect()
}

/// Rows of all spans together.
fn n_rows(spans: &[Span]) -> usize {
    spans.last().map_or(0, |it| it.rows.end)
}

/// Memory that lasts for an op, kept from op to op.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    rounded: [Grown; 2],
    gate_up: Grown,
    activated: Grown,
    /// What experts give that the device chose for few rows, and shared ones.
    outputs: Grown,
    attention: Grown,
    /// Queries, keys and values as halves, and their factors.
    halved: [Grown; 3],
    index_scores: Grown,
    delta: [Grown; 2],
    routing: Grown,
    /// Experts on their way.
    coming: Grown,
    /// Choices in the order of experts, and jobs of these.
    grouped: [Grown; 2],
    logits: Grown,
    /// The likeliest tokens of groups, and the logits of groups.
    likeliest: [Grown; 2],
    /// Bound where a kernel has nothing to write.
    unused: [Grown; 2],
}

/// A buffer that is as large as it ever had to be.
#[derive(Debug, Default)]
pub(crate) struct Grown(Option<Mem>);

impl Grown {
    /// At least so many words.
    fn words(&mut self, encoder: &mut Encoder, words: usize) -> Mem {
        let bytes = 4 * words as u64;
        if let Some(mem) = &self.0
            && mem.bytes() >= bytes
        {
            return mem.clone();
        }
        if let Some(old) = &self.0 {
            encoder.forget(old);
        }
        let most = encoder.context().max_binding_bytes();
        let roomy = bytes.next_power_of_two().min(most).max(bytes);
        let mem = encoder.storage(roomy, "scratch");
        self.0 = (!encoder.is_stand_in(&mem)).then(|| mem.clone());
        mem
    }
}
