//! Kernels of residuals of several streams.

use crate::kernels::kernel::Include::Reduce;
use crate::kernels::kernel::kernel;

kernel! {
    MixStreams in "streams/mix"("wrr");
    {}
    {}
}

kernel! {
    JoinStreams in "streams/join"("wrr");
    {}
    {}
}

kernel! {
    SimilarityGate in "streams/similarity"("wrrr")
        include [Reduce { kind: "f32", threads: "64" }];
    {}
    {}
}

kernel! {
    /// What a hyper-connection does with the streams of a row.
    StreamShares in "streams/shares"("wrr");
    {}
    {
        n: u32 = STREAMS,
        /// 3 where outputs join the streams, else 1.
        n_parts: u32 = PARTS,
    }
}

kernel! {
    WeighStreams in "streams/weigh"("wrr");
    {}
    {}
}

kernel! {
    BlendStreams in "streams/blend"("wrr");
    {}
    { n: u32 = STREAMS, }
}
