//! Kernels of element-wise ops, norms, rotary embedding, logits, copies and bandwidth probes.

use crate::kernels::kernel::Include::{Quantize, QuantizeOwn, QuantizeTwice, Reduce};
use crate::kernels::kernel::{Constants, Values, constants, kernel};
use crate::kernels::shared::Quant;

kernel! {
    Elementwise in "elementwise/elementwise"("wrr");
    {}
    {
        op: u32 = OP,
        activation: u32 = ACTIVATION,
        /// Elements of a thread.
        per_thread: u32 = PER_THREAD,
    }
}

kernel! {
    /// An element-wise op whose outputs are quantised too.
    ElementwiseQuantized in "elementwise/elementwise"("wrrww") include [QuantizeOwn];
    { quant: Quant, }
    {
        op: u32 = OP,
        activation: u32 = ACTIVATION,
        /// One: workgroups round what they compute.
        per_thread: u32 = PER_THREAD,
    }
}

constants! {
    /// A norm and how its threads share a head.
    NormShape {
        kind: u32 = KIND,
        in_place: bool = IN_PLACE,
        threads: u32 = THREADS,
        /// Fours of elements of a thread.
        per_thread: u32 = PER,
        is_aligned: bool = ALIGNED,
    }
}

kernel! {
    Norm in "norm/norm"("wrrrr") include [Reduce { kind: "f32", threads: "THREADS" }];
    { shape: NormShape, }
    {}
}

kernel! {
    /// A norm whose outputs are quantised too.
    NormQuantized in "norm/norm"("wrrrrww")
        include [Reduce { kind: "f32", threads: "THREADS" }, Quantize];
    { shape: NormShape, quant: Quant, }
    {}
}

/// Buffers that a [`Chain`] binds, its parameters aside.
pub(crate) const CHAIN_BINDINGS: usize = 19;

/// Ops that one [`Chain`] may stand for.
pub(crate) const MOST_LINKS: usize = 8;

/// Ops over whole rows, packed as `norm/chain.wgsl` reads them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Links(pub(crate) [u32; MOST_LINKS]);

impl Constants for Links {
    const NAMES: &'static [&'static str] = &["L0", "L1", "L2", "L3", "L4", "L5", "L6", "L7"];

    fn put(&self, values: &mut Values) {
        self.0.into_iter().for_each(|word| values.push(word));
    }
}

constants! {
    /// What experts give that a link adds.
    ExpertSum {
        /// 0 where no link adds it.
        top_k: u32 = TOP_K,
        has_shared: bool = SHARED,
        is_gated: bool = GATED,
    }
}

kernel! {
    /// Several ops over whole rows, one after the other.
    Chain in "norm/chain"("wwwwwwwrrrrrrrrwwww")
        include [Reduce { kind: "f32", threads: "THREADS" }, QuantizeTwice];
    { links: Links, quant: Quant, sum: ExpertSum, }
    {
        n_links: u32 = LINKS,
        threads: u32 = THREADS,
        /// Fours of elements of a thread.
        per_thread: u32 = PER,
    }
}

kernel! {
    Rope in "rope/rope"("wr");
    {}
    { is_adjacent: bool = ADJACENT, }
}

kernel! {
    TopLogitsPartial in "logits/top_logits_partial"("rw");
    {}
    { per_lane: u32 = PER_LANE, }
}

kernel! {
    TopLogitsMerge in "logits/top_logits_merge"("rrw");
    {}
    { most: u32 = MOST, }
}

kernel! {
    BandwidthProbe in "tuning/bandwidth_probe"("rw");
    {}
    { copies: bool = COPIES, }
}

kernel! {
    BufferCopy in "commands/copy"("rw");
    {}
    {}
}

kernel! {
    /// The end of a command buffer.
    Serial in "commands/serial"("w");
    {}
    {}
}

kernel! {
    CopyState in "caches/copy_state"("w");
    {}
    {}
}
