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
