//! Routing traces: whatever is accepted can be replayed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use moeflux_store::{CachePolicy, Prefetch, Replayer, RoutingTrace};

fuzz_target!(|bytes: &[u8]| {
    let Ok(trace) = RoutingTrace::parse(bytes.to_vec()) else { return };
    if trace.n_tokens() > 16 {
        return;
    }
    let replayer = Replayer::new(&trace);
    let n_slots = trace.shape().top_k;
    let best = replayer.optimum(n_slots);
    assert!(replayer.policy(CachePolicy::Frequency, n_slots).hits <= best.hits);
    replayer.prefetch(CachePolicy::Lru, n_slots, Prefetch::Lookahead);
});
