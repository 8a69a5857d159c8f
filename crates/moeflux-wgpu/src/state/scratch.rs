//! Memory that ops keep from call to call.

use crate::commands::encoder::Encoder;
use crate::device::buffer::Mem;

/// Memory that lasts for an op, kept from op to op.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) rounded: [Grown; 2],
    pub(crate) gate_up: Grown,
    pub(crate) activated: Grown,
    /// What experts give that the device chose for few rows, and shared ones.
    pub(crate) outputs: Grown,
    pub(crate) attention: Grown,
    /// Queries, keys and values as halves, and their factors.
    pub(crate) f16: [Grown; 3],
    pub(crate) index_scores: Grown,
    /// Means of index keys of pools.
    pub(crate) pool_sums: Grown,
    pub(crate) delta: [Grown; 2],
    pub(crate) routing: Grown,
    /// Experts on their way.
    pub(crate) admitted: Grown,
    /// Choices in the order of experts, and jobs of these.
    pub(crate) grouped: [Grown; 2],
    pub(crate) logits: Grown,
    /// The likeliest tokens of groups, and the logits of groups.
    pub(crate) likeliest: [Grown; 2],
    /// Bound where a kernel has nothing to write.
    pub(crate) unused: [Grown; 11],
}

/// A buffer that is as large as it ever had to be.
#[derive(Debug, Default)]
pub(crate) struct Grown(pub(crate) Option<Mem>);

impl Grown {
    /// At least this many words.
    pub(crate) fn words(&mut self, encoder: &mut Encoder, words: usize) -> Mem {
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
        let mem = encoder.buffers.storage(roomy, "scratch");
        self.0 = (!encoder.buffers.is_stand_in(&mem)).then(|| mem.clone());
        mem
    }
}
