//! Kernels of causal convolutions, of the gated delta rule and of state spaces.

use crate::kernels::kernel::Include::{DeltaDecay, DeltaSums, Quantize, Reduce};
use crate::kernels::kernel::{constants, kernel};
use crate::kernels::shared::Quant;

kernel! {
    /// A convolution of many rows.
    Conv in "conv/rows"("wrrrr");
    {}
    { n_kept: u32 = KEPT, is_biased: bool = BIASED, }
}

kernel! {
    ConvHistory in "conv/history"("wr");
    {}
    {}
}

kernel! {
    /// A convolution of a few rows, with its history.
    ConvStep in "conv/step"("wrrwr");
    {}
    { n_kept: u32 = KEPT, is_biased: bool = BIASED, }
}

kernel! {
    /// Normalises queries and keys, and computes decays and strengths.
    PrepareDelta in "delta_rule/prepare"("rrrrrww")
        include [Reduce { kind: "vec2<f32>", threads: "64" }, DeltaDecay];
    {}
    { decay: u32 = DECAY, }
}

constants! {
    /// How lanes share a row of a head's state.
    StateShape {
        /// Floats that are read at once.
        width: u32 = WIDTH,
        k_dim: u32 = K_DIM,
        /// Lanes that share a row.
        row_lanes: u32 = ROW_LANES,
        /// Fours of columns of a lane.
        fours: u32 = KEPT,
    }
}

kernel! {
    /// The delta rule over many rows.
    DeltaRows in "delta_rule/rows"("wrrrw") include [Quantize, DeltaSums] feature [WritesFirst];
    { state: StateShape, }
    {
        /// Of a step: query and key, and decays where columns have their own.
        vectors: u32 = VECTORS,
        rows: u32 = ROWS,
        loads: u32 = LOADS,
    }
}

constants! {
    /// Values of a head, and passes of a workgroup over them.
    StepShape {
        v_dim: u32 = V_DIM,
        passes: u32 = PASSES,
        /// Whether the norm's gate goes through a sigmoid, not `silu`.
        is_sigmoid: bool = SIGMOID,
        /// What decays: 0 a head, 1 its columns, 2 its columns within a bound.
        decay: u32 = DECAY,
    }
}

kernel! {
    /// Delta rule and gated norm of a few rows.
    DeltaStep in "delta_net/step"("wrrrrrrw")
        include [Reduce { kind: "vec2<f32>", threads: "64" }, Quantize, DeltaSums, DeltaDecay];
    { state: StateShape, step: StepShape, }
    {}
}

kernel! {
    /// Convolution, delta rule and gated norm of a few rows.
    DeltaMixer in "delta_net/step"("wrrrrwrwww")
        include [Reduce { kind: "vec2<f32>", threads: "64" }, Quantize, DeltaSums, DeltaDecay];
    { state: StateShape, step: StepShape, quant: Quant, }
    {
        /// Inputs that the convolution's history holds.
        taps: u32 = TAPS,
        channels: u32 = CHANNELS,
        /// Channels of a thread.
        per_thread: u32 = OWN,
    }
}

kernel! {
    /// The recurrence of state-space layers.
    StateSpace in "state_space/rows"("wrrrrrw") feature [WritesFirst];
    {}
    {
        state_size: u32 = STATE,
        /// Rows of the state that a lane keeps.
        kept: u32 = KEPT,
        /// Rows of the batch that a step takes.
        rows: u32 = ROWS,
        /// Elements that a thread loads of them.
        loads: u32 = LOADS,
    }
}
