//! Reads ahead by a prediction of the next layer.

use std::path::Path;
use std::time::{Duration, Instant};

use moeflux_core::TokenId;
use moeflux_store::{Event, EventKind, IoChoice, Prefetch};

use crate::engine::Engine;
use crate::options::EngineOptions;

/// Whether a layer's expert was read ahead while the layer before waited.
fn reads_during_waits(events: &[Event]) -> bool {
    let mut waits = Vec::new();
    let mut since = None;
    for event in events {
        match event.what {
            EventKind::StallStart { .. } => since = Some(event.at),
            EventKind::StallEnd { layer } => {
                waits.extend(since.take().map(|s| (layer, s..event.at)))
            }
            _ => {}
        }
    }
    events.iter().any(|event| match event.what {
        EventKind::ReadStart { key, is_predicted: true } => {
            waits.iter().any(|(layer, wait)| layer.0 + 1 == key.layer.0 && wait.contains(&event.at))
        }
        _ => false,
    })
}

#[test]
fn the_drive_goes_on_while_the_last_expert_is_awaited() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/qwen3_next-hf");
    let facts = crate::inspect::inspect(&dir, &EngineOptions::default()).unwrap();
    let record = facts.bank.max_record_bytes().next_multiple_of(moeflux_core::PAGE_BYTES);
    let options = EngineOptions::default()
        .expert_cache(Some(12 * record as u64))
        .expert_io(IoChoice::Direct)
        .prefetch(Prefetch::Lookahead);
    let engine = Engine::open(&dir, &options).unwrap();
    let start = Instant::now();
    loop {
        engine.core().experts.record_timeline(1 << 16);
        let mut session = engine.session();
        for token in 3..40 {
            session.eval_prompt(&[TokenId(token)]).unwrap();
        }
        if reads_during_waits(&engine.core().experts.take_timeline().events) {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "no wait was used");
    }
}
