//! Kernels of mixtures of experts.

use crate::kernels::kernel::Include::{self, QuantizeOwn};
use crate::kernels::kernel::kernel;
use crate::kernels::shared::{Activation, Quant};

kernel! {
    Route in "moe/route"("rrw");
    {}
    {
        scoring: u32 = SCORING,
        /// Experts of a lane.
        per_lane: u32 = PER,
        is_grouped: bool = GROUPED,
    }
}

kernel! {
    SortByExpert in "moe/sort_by_expert"("rw");
    {}
    {}
}

kernel! {
    GroupedGemmJobs in "moe/grouped_gemm_jobs"("rrw");
    {}
    { max_experts: u32 = MOST_EXPERTS, }
}

kernel! {
    Activate in "moe/activation"("rrrrw") include [Include::Activation];
    { activation: Activation, }
    {}
}

kernel! {
    /// Activations that are quantised too.
    ActivateQuantized in "moe/activation"("rrrrwww") include [QuantizeOwn, Include::Activation];
    { activation: Activation, quant: Quant, }
    {}
}

kernel! {
    /// Adds a row of a table to each of some rows.
    AddRows in "moe/add_rows"("wrr");
    {}
    {
        /// The rows are those of choices of the device.
        is_chosen: bool = CHOSEN,
    }
}

kernel! {
    Combine in "moe/combine"("wrrrr");
    {}
    { has_shared: bool = SHARED, is_gated: bool = GATED, }
}

kernel! {
    /// Brings listed experts from the host's memory into slots.
    ExpertGather in "moe/expert_gather"("rwr");
    {}
    {}
}

kernel! {
    /// Brings the experts that the device admitted into their slots.
    ExpertGatherAdmitted in "moe/expert_gather"("rwrrrrrr") feature [Chosen];
    {}
    {}
}

kernel! {
    ExpertAdmit in "moe/expert_admit"("rrwwww");
    {}
    {
        /// Slots of a lane.
        per_lane: u32 = PER,
    }
}
