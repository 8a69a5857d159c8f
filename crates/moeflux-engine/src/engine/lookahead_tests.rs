//! Reads ahead by a prediction of the next layer with experts.

use std::path::Path;
use std::time::{Duration, Instant};

use moeflux_core::TokenId;
use moeflux_store::{Event, EventKind, IoChoice, Prefetch};

use crate::engine::Engine;
use crate::options::EngineOptions;

/// Whether an expert was read ahead while the layer with experts before its own, of these layers,
/// waited.
fn reads_during_waits(events: &[Event], layers: &[u16]) -> bool {
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
            let before = layers.iter().rfind(|layer| **layer < key.layer.0);
            waits.iter().any(|(layer, wait)| before == Some(&layer.0) && wait.contains(&event.at))
        }
        _ => false,
    })
}

#[test]
fn the_drive_goes_on_while_the_last_expert_is_awaited() {
    // Layers with experts are adjacent, or have others between them, or experts behind projections.
    for case in ["qwen3_next-hf", "nemotron_h-hf", "nemotron_h-latent"] {
        check(case);
    }
}

fn check(case: &str) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(case);
    let facts = crate::inspect::inspect(&dir, &EngineOptions::default()).unwrap();
    let layers = (0..).zip(&facts.bank.layers).filter_map(|(i, layer)| layer.as_ref().map(|_| i));
    let layers: Vec<u16> = layers.collect();
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
        if reads_during_waits(&engine.core().experts.take_timeline().events, &layers) {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "{case}: no wait was used");
    }
}
