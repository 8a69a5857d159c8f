//! Kernels of element-wise ops, norms, rotary embedding, logits, copies and bandwidth probes.

use crate::kernels::kernel::Include::{Quantize, QuantizeOwn, Reduce};
use crate::kernels::kernel::{constants, kernel};
use crate::kernels::shared::Quant;

kernel! {
    Elementwise in "elementwise/elementwise"("wrr");
    {}
    { op: u32 = OP, activation: u32 = ACTIVATION, }
}

kernel! {
    /// An element-wise op whose outputs are quantised too.
    ElementwiseQuantized in "elementwise/elementwise"("wrrww") include [QuantizeOwn];
    { quant: Quant, }
    { op: u32 = OP, activation: u32 = ACTIVATION, }
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

constants! {
    /// What is added to the input of a norm first.
    FusedSum {
        /// 1 for one row, 2 for outputs of experts.
        kind: u32 = SUM,
        top_k: u32 = TOP_K,
        has_shared: bool = SHARED,
        is_gated: bool = GATED,
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

kernel! {
    /// A norm of a sum that the kernel adds up first.
    NormOfSum in "norm/norm"("wwrrrrrww")
        include [Reduce { kind: "f32", threads: "THREADS" }, Quantize];
    { shape: NormShape, quant: Quant, sum: FusedSum, }
    {}
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
